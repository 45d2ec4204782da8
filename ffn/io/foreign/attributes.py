"""Find z, y and x among the axes of an array, and convert voxel sizes and offsets of other tools to nm and voxels."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize, zyx
from ffn.io.volume import Volume

VOXEL_SIZE_NM = "voxel_size_nm"  # attribute with a voxel size, zyx; with it, an offset counts voxels
ILASTIK = "element_size_um"
ZYX_NAMES = ("z", "y", "x")
UNKNOWN = ("unknown",) * 3  # units
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
            raise VolumeError(f"{name}: has shape {tuple(shape)}, expected three axes. Save one channel alone")
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
        found = f"{name}: has shape {tuple(shape)} without names of axes: {readings[0]} or {readings[1]} voxels"
        raise VolumeError(f"{found}, expected one reading. Save it with three axes")
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


@dataclass(frozen=True)
class Mip:
    """One resolution of an image; all triples are zyx."""

    path: str  # of the array in the folder of the image
    scale: VoxelSize = (1.0, 1.0, 1.0)  # side of a voxel
    translation: VoxelSize = (0.0, 0.0, 0.0)  # place of the centre of the first voxel
    units: tuple[str, ...] = UNKNOWN
    names: tuple[str, ...] = ()  # of all axes in the order of storage
    finest: VoxelSize | None = None  # `scale` of the finest mip

    def __post_init__(self) -> None:
        """Refuse values of damaged metadata."""
        if not all(0 < side < math.inf for side in self.scale) or not all(map(math.isfinite, self.translation)):
            raise ValueError(f"scale {self.scale}, translation {self.translation}")
        if len(self.units) != 3 or not all(isinstance(unit, str) for unit in self.units):
            raise ValueError(f"units {self.units}")

    @property
    def voxel_size_zyx_nm(self) -> VoxelSize | None:
        """Side of a voxel in nm, None where the unit is unknown."""
        return to_nm(self.scale, self.units)

    @property
    def unknown_unit(self) -> str:
        """The first unit that is there and unknown; empty if there is none."""
        return next((unit for unit in self.units if unit not in UNKNOWN and nm_per(unit) is None), "")

    def put(self, volume: Volume) -> None:
        """Move a volume that starts at 0, 0, 0 to its place, or note why it has none."""
        try:
            volume.box = volume.box.shift(self.start_zyx(volume.name))
        except VolumeError as reason:
            volume.misplaced = reason

    def start_zyx(self, name: str) -> ZYX:
        """Return the place of the first voxel, in voxels of this mip, or raise VolumeError if it is between voxels.

        A coarse voxel covers several fine ones, so its centre is not where that of the first fine one is. Some programs
        say so in the translation, others give all mips the same.
        """
        scale, translation = np.asarray(self.scale), np.asarray(self.translation)
        same_centre = translation / scale
        same_corner = same_centre - (1 - np.asarray(self.finest or scale) / scale) / 2
        is_whole = np.abs(same_centre - same_centre.round()) <= MAX_SHIFT
        give = "Give" if self.finest in (None, self.scale) else "Name the finest array, of which mip makes it, or give"
        advice = f"{give} the place of the first voxel: ffn ingest --offset, or labels_offset_zyx for labels"
        voxels = np.where(is_whole, same_centre, same_corner)
        if np.abs(voxels - voxels.round()).max() > MAX_SHIFT:
            found = f"{self.translation}, which is ({', '.join(f'{value:g}' for value in voxels)}) voxels"
            raise VolumeError(f"{name}: translation is {found}, expected a whole number of voxels. {advice}")
        return zyx(voxels.round())


def mip_of_array(attributes: Mapping[str, Any], name: str) -> Mip:
    """Return the place of an array `name` by its attributes.

    They are `voxel_size_nm` with an `offset` in voxels (ours), both zyx; `resolution` (CREMI) or `voxel_size` (funlib)
    in nm or in the `units` of funlib, with an `offset` in the same unit, both in the order of the array's axes where
    these have names; or `element_size_um` (ilastik, Fiji) in µm, zyx, without an offset.

    Raises
    ------
    VolumeError
        If an attribute is not three lengths, or the offset may be nm or voxels.

    Examples
    --------
    >>> cremi = mip_of_array({"resolution": (40, 4, 4), "offset": (1480, 3644, 3644)}, "cremi.h5:labels")
    >>> cremi.voxel_size_zyx_nm, cremi.start_zyx("cremi.h5:labels")
    ((40.0, 4.0, 4.0), (37, 911, 911))
    """
    where, names = f"{name}: attribute offset", tuple(axis_names(attributes))
    offset = three_numbers(attributes.get("offset", (0, 0, 0)), where)
    key = next((key for key in (VOXEL_SIZE_NM, "resolution", "voxel_size", ILASTIK) if key in attributes), None)
    if key in (None, ILASTIK) and any(offset):
        advice = f"Add the attribute voxel_size, in nm, if it is nm, or {VOXEL_SIZE_NM} if it is voxels"
        raise VolumeError(f"{where} is {offset}, nm or voxels, expected a voxel size that says so. {advice}")
    if key is None:
        return Mip("", names=names)
    units = {VOXEL_SIZE_NM: ("nm",) * 3, ILASTIK: ("um",) * 3}.get(key) or _units(attributes)
    size = three_numbers(attributes[key], f"{name}: attribute {key}")
    if to_nm(size, units) is None:
        found = f"{size} in {', '.join(units)}"
        raise VolumeError(f"{name}: attribute {key} is {found}, expected three positive lengths. Correct it")
    if key == VOXEL_SIZE_NM:
        offset = triple(np.multiply(offset, size))
    named = [axis for axis in names if axis in ZYX_NAMES]
    if key in (VOXEL_SIZE_NM, ILASTIK) or sorted(named) != sorted(ZYX_NAMES):
        return Mip("", size, offset, units, names)
    return replace(mip_of_axes("", named, size, offset, units), names=names)


def mip_of_axes(path: str, names: Sequence[str], scale: Any, translation: Any, units: Sequence[str]) -> Mip:
    """Return a mip by values in the order of named axes."""
    zyx = [names.index(axis) for axis in "zyx"]
    scale, translation = (triple(np.asarray(values)[zyx]) for values in (scale, translation))
    return Mip(path, scale, translation, tuple(units[axis] for axis in zyx), tuple(names))


def triple(values: np.ndarray) -> VoxelSize:
    """Return three numbers of NumPy as floats."""
    z, y, x = values.tolist()
    return float(z), float(y), float(x)


def three_numbers(value: Any, where: str) -> VoxelSize:
    """Return `value` as three floats, or raise VolumeError that starts with `where`."""
    try:
        z, y, x = (float(str(v)) for v in value)  # of float32 only the digits that it has: 0.04, not 0.0399999991
        if math.isfinite(z + y + x):
            return z, y, x
    except (TypeError, ValueError):
        pass
    raise VolumeError(f"{where} is {value!r:.200}, expected three numbers. Correct it")


def _units(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the unit of each axis."""
    given = attributes.get("units", "nm")
    texts = list(given) if isinstance(given, (list, tuple, np.ndarray)) and len(given) == 3 else [given] * 3
    return tuple(text.decode() if isinstance(text, bytes) else str(text) for text in texts)
