"""Find z, y and x among the axes of an array."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ffn.errors import VolumeError


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
