"""Find z, y and x among the axes of an array, and convert voxel sizes and offsets of other tools to nm and voxels."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize, zyx

VOXEL_SIZE_NM = "voxel_size_nm"  # attribute with a voxel size, zyx; with it, an offset counts voxels
ILASTIK = "element_size_um"
ZYX_NAMES = ("z", "y", "x")
_NM = {
    1e-3: "pm picometer",
    0.1: "å angstrom ångström ångstrom",
    1.0: "nm nanometer",
    1e3: "um μm micron micrometer",  # casefold makes this Greek letter of the micro sign
    1e6: "mm millimeter",
    1e7: "cm centimeter",
    1e9: "m meter",
}
NM_PER_UNIT = {"": 1.0} | {name: nm for nm, names in _NM.items() for name in names.split()}
MAX_SHIFT = 0.05  # voxels, that a volume may be off its place; our choice, for offsets that were rounded to some digits


@dataclass(frozen=True)
class SpatialAxes:
    """Indices of z, y and x among the `ndim` axes of an array; all others have length 1."""

    zyx: tuple[int, int, int]
    ndim: int

    @classmethod
    def find(cls, name: str, shape: Sequence[int], names: Sequence[str] = (), order: str = "zyx") -> SpatialAxes:
        """Find them by the names of the axes or, where z, y and x are not among these, by length.

        Parameters
        ----------
        name : str
            Name of the volume, for messages.
        shape : sequence of int
            Lengths of all axes.
        names : sequence of str
            Names of all axes, in any case.
        order : str
            Order of the spatial axes where they have no names: ``zyx`` or ``xyz``.

        Raises
        ------
        VolumeError
            If there are fewer than three, another axis is longer than 1, it is not clear which axis to drop, or there
            are no voxels.

        Examples
        --------
        >>> SpatialAxes.find("a.zarr", (1, 5, 12, 20)).zyx, SpatialAxes.find("a.zarr", (20, 12, 5, 1), "xyzc").zyx
        ((1, 2, 3), (2, 1, 0))
        """
        lower = [text.lower() for text in names]
        if len(lower) == len(shape) and {"z", "y", "x"} <= set(lower):
            kept = [lower.index(axis) for axis in "zyx"]
        else:
            kept = _by_length(name, shape)[:: -1 if order == "xyz" else 1]
        if not kept or 0 in shape or any(n != 1 for axis, n in enumerate(shape) if axis not in kept):
            raise VolumeError(
                f"{name}: has shape {tuple(shape)}, expected three axes and one channel. Save one channel alone"
            )
        z, y, x = kept
        return cls((z, y, x), len(shape))

    def of(self, values: Sequence[int]) -> tuple[int, int, int]:
        """Return those of the values, one for each axis, that belong to z, y and x."""
        z, y, x = (int(values[axis]) for axis in self.zyx)
        return z, y, x

    def take(self, array: Any, slices_zyx: Sequence[slice]) -> Any:
        """Return a part of `array` with the axes z, y and x; it may be of NumPy, h5py or TensorStore."""
        index: list[int | slice] = [0] * self.ndim
        for axis, part in zip(self.zyx, slices_zyx, strict=True):
            index[axis] = part
        stored = sorted(self.zyx)
        return array[tuple(index)].transpose([stored.index(axis) for axis in self.zyx])


def axis_names(attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of the axes by the attributes of an array, as xarray, funlib, ilastik and we write them.

    Examples
    --------
    >>> axis_names({"axis_names": ["c^", "z", "y", "x"]}), axis_names({"axes": "zyx"}), axis_names({})
    (['c', 'z', 'y', 'x'], ['z', 'y', 'x'], [])
    """
    try:
        if "axistags" in attributes:
            return [axis["key"] for axis in json.loads(attributes["axistags"])["axes"]]
        found = next(attributes[key] for key in ("_ARRAY_DIMENSIONS", "axis_names", "axes") if key in attributes)
        return [(name.decode() if isinstance(name, bytes) else str(name)).strip("^") for name in found]
    except (StopIteration, KeyError, TypeError, ValueError):
        return []


def _by_length(name: str, shape: Sequence[int]) -> list[int]:
    """Return the three axes that remain where all others have length 1, in the order of storage."""
    choices = [
        list(axes)
        for axes in itertools.combinations(range(len(shape)), 3)
        if all(n == 1 for axis, n in enumerate(shape) if axis not in axes)
    ]
    readings = sorted({tuple(shape[axis] for axis in axes) for axes in choices})
    if len(readings) > 1:
        raise VolumeError(
            f"{name}: has shape {tuple(shape)} and no names of axes, so it may have {readings[0]} or {readings[1]} "
            "voxels, expected one reading. Save it with three axes"
        )
    return choices[-1] if choices else []


def nm_per(unit: str) -> float | None:
    """Return the nm in a unit, in any spelling; None for an unknown one.

    Examples
    --------
    >>> nm_per("Micrometres"), nm_per("Å"), nm_per("pixel"), nm_per("ms")
    (1000.0, 0.1, None, None)
    """
    name = unit.strip().casefold().replace("metre", "meter")
    name = name.removesuffix("s") if len(name) > len("ms") else name  # s and ms are times
    return NM_PER_UNIT.get(name)


def to_nm(sizes: Sequence[float], units: Sequence[str]) -> VoxelSize | None:
    """Convert three lengths to nm; return None if a unit is unknown or a length is not positive.

    Examples
    --------
    >>> to_nm((0.04, 4, 4), ("um", "nm", ""))
    (40.0, 4.0, 4.0)
    """
    factors = [nm for unit in units if (nm := nm_per(unit)) is not None]
    if len(factors) != 3 or not all(0 < size < math.inf for size in sizes):
        return None
    z, y, x = (float(size) * nm for size, nm in zip(sizes, factors, strict=True))
    return z, y, x


def voxel_size_and_offset(attributes: Mapping[str, Any], name: str) -> tuple[VoxelSize | None, ZYX]:
    """Read voxel size in nm, None if it is missing, and offset in voxels, from the attributes of an array `name`.

    They are `voxel_size_nm` with an `offset` in voxels (ours), both zyx; `resolution` (CREMI) or `voxel_size` (funlib)
    in nm or in the `units` of funlib, with an `offset` in the same unit, both in the order of the array's axes where
    these have names; or `element_size_um` (ilastik, Fiji) in µm, zyx, without an offset.

    Raises
    ------
    VolumeError
        If an attribute is not three lengths, or the offset is not a whole number of voxels or may be nm or voxels.

    Examples
    --------
    >>> voxel_size_and_offset({"resolution": (40, 4, 4), "offset": (1480, 3644, 3644)}, "cremi.h5:labels")
    ((40.0, 4.0, 4.0), (37, 911, 911))
    """
    where = f"{name}: attribute offset"
    offset = three_numbers(attributes.get("offset", (0, 0, 0)), where)
    keys = (VOXEL_SIZE_NM, "resolution", "voxel_size", ILASTIK)
    key = next((key for key in keys if key in attributes), None)
    if key in (None, ILASTIK) and any(offset):
        raise VolumeError(
            f"{where} is {offset}, which may be nm or voxels, expected a voxel size that says so. "
            f"Add the attribute voxel_size, in nm, if it is nm, or {VOXEL_SIZE_NM} if it is voxels"
        )
    if key is None:
        return None, (0, 0, 0)
    units = {VOXEL_SIZE_NM: ["nm"] * 3, ILASTIK: ["um"] * 3}.get(key) or _units(attributes)
    given = three_numbers(attributes[key], f"{name}: attribute {key}")
    size = to_nm(given, units)
    if size is None:
        found = f"{given} in {', '.join(units)}"
        raise VolumeError(f"{name}: attribute {key} is {found}, expected three positive lengths. Correct it")
    if key == VOXEL_SIZE_NM:
        return size, whole_voxels(offset, where)
    offset_nm = np.multiply(offset, [nm_per(unit) or 1 for unit in units])
    start = whole_voxels(np.divide(offset_nm, size), f"{where} is {offset}")
    named = [axis for axis in axis_names(attributes) if axis in ZYX_NAMES]
    if key == ILASTIK or sorted(named) != sorted(ZYX_NAMES):
        return size, start
    z, y, x = (named.index(axis) for axis in ZYX_NAMES)
    return (size[z], size[y], size[x]), (start[z], start[y], start[x])


def whole_voxels(voxels: Sequence[float] | np.ndarray, where: str, advice: str = "Correct it") -> ZYX:
    """Return an offset as three whole numbers, or raise VolumeError that starts with `where`."""
    voxels = np.asarray(voxels, float)
    if not np.isfinite(voxels).all() or np.abs(voxels - voxels.round()).max() > MAX_SHIFT:
        found = ", ".join(f"{value:g}" for value in voxels)
        raise VolumeError(f"{where}, which is ({found}) voxels, expected a whole number of voxels. {advice}")
    return zyx(voxels.round())


def three_numbers(value: Any, where: str) -> VoxelSize:
    """Return `value` as three floats, or raise VolumeError that starts with `where`."""
    try:
        z, y, x = (float(str(v)) for v in value)  # of float32 only the digits that it has: 0.04, not 0.0399999991
    except (TypeError, ValueError):
        raise VolumeError(f"{where} is {value!r}, expected three numbers. Correct it") from None
    return z, y, x


def _units(attributes: Mapping[str, Any]) -> list[str]:
    """Return the unit of each axis."""
    given = attributes.get("units", "nm")
    texts = list(given) if isinstance(given, (list, tuple, np.ndarray)) and len(given) == 3 else [given] * 3
    return [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
