"""Convert voxel sizes and offsets of other tools to nm and voxels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize, zyx

NM_PER_UNIT = {
    "": 1.0,
    "nm": 1.0,
    "nanometer": 1.0,
    "um": 1e3,
    "µm": 1e3,  # micro sign
    "μm": 1e3,  # Greek mu
    "micrometer": 1e3,
    "mm": 1e6,
    "millimeter": 1e6,
    "m": 1e9,
    "meter": 1e9,
}


def to_nm(sizes: Sequence[float], units: Sequence[str]) -> VoxelSize | None:
    """Convert three lengths to nm; return None if a unit is unknown or a length is not positive.

    Examples
    --------
    >>> to_nm((0.04, 4, 4), ("um", "nm", ""))
    (40.0, 4.0, 4.0)
    """
    if any(unit not in NM_PER_UNIT for unit in units) or not all(size > 0 for size in sizes):
        return None
    z, y, x = (float(size) * NM_PER_UNIT[unit] for size, unit in zip(sizes, units, strict=True))
    return z, y, x


def voxel_size_and_offset(attributes: Mapping[str, Any], name: str) -> tuple[VoxelSize | None, ZYX]:
    """Read `resolution` or `voxel_size`, and `offset`, all in nm and zyx, as CREMI and funlib write them.

    Parameters
    ----------
    attributes : mapping
        Attributes of the array.
    name : str
        Name of the volume, for messages.

    Returns
    -------
    tuple of float or None, tuple of int
        Voxel size in nm, None if it is missing; offset in voxels.

    Raises
    ------
    VolumeError
        If an attribute is not three numbers, or the offset is not a whole number of voxels.

    Examples
    --------
    >>> voxel_size_and_offset({"resolution": (40, 4, 4), "offset": (1480, 3644, 3644)}, "cremi.h5:labels")
    ((40.0, 4.0, 4.0), (37, 911, 911))
    """
    found = next((attributes[key] for key in ("resolution", "voxel_size") if key in attributes), None)
    if found is None:
        return None, (0, 0, 0)
    size = three_numbers(found, f"{name}: attribute resolution")
    offset = three_numbers(attributes.get("offset", (0, 0, 0)), f"{name}: attribute offset")
    if min(size) <= 0:
        raise VolumeError(f"{name}: attribute resolution is {size}, expected three positive lengths in nm. Correct it")
    voxels = np.divide(offset, size)
    if np.abs(voxels - voxels.round()).max() > 1e-3:
        raise VolumeError(
            f"{name}: attribute offset is {offset} nm, expected a whole number of voxels of {size} nm. Correct it"
        )
    return size, zyx(voxels.round())


def three_numbers(value: Any, where: str) -> VoxelSize:
    """Return `value` as three floats; `where` starts the message.

    Raises
    ------
    VolumeError
        If it is not three numbers.
    """
    try:
        z, y, x = (float(v) for v in value)
    except (TypeError, ValueError):
        raise VolumeError(f"{where} is {value!r}, expected three numbers. Correct it") from None
    return z, y, x
