"""Places, voxel sizes and mips of volumes, as OME-Zarr, N5, COSEM, Neuroglancer and attributes of arrays describe them.

`ome-zarr-models` reads only OME-Zarr from 0.4 on, and refuses images in which other programs left something out.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize, zyx
from ffn.io.atomic import unreadable
from ffn.io.volume import Volume

if TYPE_CHECKING:
    from ffn.io.foreign.locations import Folder

Attributes = Mapping[str, Any]

VOXEL_SIZE_NM = "voxel_size_nm"  # attribute with a voxel size, zyx; with it, an offset counts voxels
ILASTIK = "element_size_um"
PRECOMPUTED = "neuroglancer_precomputed"
ENCODINGS = ("raw", "png", "jpeg", "compressed_segmentation")  # of precomputed, that TensorStore reads
N5 = "attributes.json"
OLD_AXES = ("t", "c", "z", "y", "x")  # of OME-Zarr 0.1 and 0.2, which do not name them
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


def axis_names(attributes: Attributes) -> list[str]:
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


def mip_of_array(attributes: Attributes, name: str) -> Mip:
    """Return the place of an array `name` by its attributes.

    They are `voxel_size_nm` with an `offset` in voxels (ours), both zyx; `resolution` (CREMI) or `voxel_size` (funlib)
    in nm or in the `units` of funlib, with an `offset` in the same unit, both in the order of the array's axes where
    these have names; `transform` (COSEM); or `element_size_um` (ilastik, Fiji) in µm, zyx, without an offset.

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
    if isinstance(transform := attributes.get("transform"), Mapping):  # in HDF5, other programs have arrays there
        return replace(_cosem_mip("", transform), names=names)
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


def _units(attributes: Attributes) -> tuple[str, ...]:
    """Return the unit of each axis."""
    given = attributes.get("units", "nm")
    texts = list(given) if isinstance(given, (list, tuple, np.ndarray)) and len(given) == 3 else [given] * 3
    return tuple(text.decode() if isinstance(text, bytes) else str(text) for text in texts)


def find_mips(folder: Folder, name: str) -> list[Mip]:
    """Return the mips of an image in a group, finest first; of an array, that one.

    Raises
    ------
    VolumeError
        If the metadata are damaged or contradict each other.
    """
    with unreadable(
        f"metadata of {name}", "axes z, y and x with voxel size, place and units. Correct them, or name an array inside"
    ):
        scales = folder.json("info").get("scales", ())
        if scales:
            odd = next((each.get("encoding") for each in scales if each.get("encoding", "raw") not in ENCODINGS), None)
            if odd is not None:
                advice = "Copy it: igneous image xfer --encoding compressed_segmentation (labels) or raw (images)"
                raise VolumeError(f"{name}: has the encoding {odd!s:.40}, expected {', '.join(ENCODINGS)}. {advice}")
            for scale in scales:
                folder.below(str(scale.get("key", "")))  # which refuses places outside of the folder
            return [_precomputed_mip(scale, name) for scale in scales]
        n5 = folder.json(N5)
        if "dimensions" in n5:
            return [_in_image(_n5_mip("", n5, {}, name), folder, name)]
        if folder.json(".zarray") or folder.json("zarr.json").get("node_type") == "array":
            return [_in_image(mip_of_array(_zarr(folder), name), folder, name)]
        return _group_mips(folder, name) or [Mip("")]  # TensorStore says what is wrong


def driver_of(folder: Folder) -> str:
    """Return TensorStore's driver for an array; ``auto`` if the metadata do not tell.

    TensorStore's own search fails in a bucket that does not tell which files are missing.
    """
    if folder.json(".zarray"):
        return "zarr"
    if folder.json("zarr.json"):
        return "zarr3"
    if "dimensions" in folder.json(N5):
        return "n5"
    return PRECOMPUTED if "scales" in folder.json("info") else "auto"


def _group_mips(folder: Folder, name: str) -> list[Mip]:
    """Return the mips of an image in a group of zarr or N5; empty if its attributes describe none."""
    attributes = _zarr(folder)
    content = attributes.get("ome", attributes)
    images = content.get("multiscales") if isinstance(content, Mapping) else None
    if images:
        mips = [_ome_mip(images[0], dataset) for dataset in images[0]["datasets"]]
    else:
        group, mips = folder.json(N5), []
        for described in _n5_datasets(group):
            path = described["path"]
            of_array = folder.below(path).json(N5)
            if "dimensions" not in of_array:
                break
            mips.append(_n5_mip(path, {**described, **of_array}, group, name))
    return [replace(mip, finest=mips[0].scale) for mip in mips]


def _in_image(own: Mip, folder: Folder, name: str) -> Mip:
    """Return an array as a mip of the image that it belongs to, or by its own attributes where it is in no image."""
    above = folder.above()
    if above is None:
        return own
    around, path = above
    found = next((mip for mip in _group_mips(around, name) if mip.path.strip("/") == path), None)
    if found is None:
        return own
    if found.voxel_size_zyx_nm is None and own.voxel_size_zyx_nm is not None:
        return replace(own, names=own.names or found.names)
    return replace(found, path="")


def _zarr(folder: Folder) -> Attributes:
    """Return the user attributes of an array or a group in zarr; empty if it has none."""
    attributes = folder.json(".zattrs") or folder.json("zarr.json").get("attributes", {})
    return attributes if isinstance(attributes, dict) else {}


def _n5_datasets(group: Attributes) -> Iterator[Attributes]:
    """Yield the datasets that a group of N5 may have: those that COSEM describes, else s0, s1, …."""
    try:
        yield from [{**dataset, "path": dataset["path"]} for dataset in group["multiscales"][0]["datasets"]]
    except (KeyError, TypeError, IndexError):
        yield from ({"path": f"s{mip}"} for mip in itertools.count())


def _precomputed_mip(scale: Attributes, name: str) -> Mip:
    size = _from_xyz(scale.get("resolution"), f"{name}: resolution")
    offset = _from_xyz(scale.get("voxel_offset", (0, 0, 0)), f"{name}: voxel_offset")
    return Mip("", size, triple(np.multiply(size, offset)), ("nm",) * 3)


def _n5_mip(path: str, attributes: Attributes, group: Attributes, name: str) -> Mip:
    """Return the place of an array by attributes of COSEM (`transform`), Fiji (`pixelResolution`) or Paintera.

    A voxel size that only the group has is that of full resolution.
    """
    if "transform" in attributes:
        return _cosem_mip(path, attributes["transform"])
    values = {**group, **attributes}
    factors = attributes.get("downsamplingFactors", (1, 1, 1))
    size: Any = (1, 1, 1)
    units = UNKNOWN
    if "pixelResolution" in values:
        size = values["pixelResolution"]
        if isinstance(size, Mapping):
            size, units = size.get("dimensions"), (str(size.get("unit", UNKNOWN[0])),) * 3
    elif "resolution" in values:
        size, units = values["resolution"], tuple(values.get("units", ("nm",) * 3))[::-1]
        factors = (1, 1, 1) if "resolution" in attributes else factors
    scale = np.multiply(_from_xyz(size, f"{name}: voxel size"), _from_xyz(factors, f"{name}: downsamplingFactors"))
    return Mip(path, triple(scale), _from_xyz(values.get("offset", (0, 0, 0)), f"{name}: attribute offset"), units)


def _ome_mip(image: Attributes, dataset: Attributes) -> Mip:
    axes = [axis if isinstance(axis, Mapping) else {"name": axis} for axis in image.get("axes", OLD_AXES)]
    names = [axis["name"].lower() for axis in axes]
    scale, translation = np.ones(len(axes)), np.zeros(len(axes))
    for owner, described in ((f"dataset {dataset['path']}", dataset), ("the image", image)):
        for step in described.get("coordinateTransformations", ()):
            kind = step["type"]
            if kind not in ("identity", "scale", "translation"):
                raise ValueError(f"{owner} has a transformation of type {kind!s:.40}")
            values = step.get(kind, ())
            if kind != "identity" and len(values) != len(axes):
                raise ValueError(f"the {kind} of {owner} has {len(values)} numbers, its axes are {len(axes)}")
            if kind == "scale":
                scale, translation = scale * values, translation * values
            elif kind == "translation":
                translation = translation + values
    return mip_of_axes(dataset["path"], names, scale, translation, [axis.get("unit") or UNKNOWN[0] for axis in axes])


def _cosem_mip(path: str, transform: Attributes) -> Mip:
    scale, translate, units = transform["scale"], transform["translate"], transform.get("units", UNKNOWN)
    mip = mip_of_axes(path, transform["axes"], scale, translate, units)
    return replace(mip, names=())  # these are in the order of NumPy, for any order of storage


def _from_xyz(values: Any, where: str) -> VoxelSize:
    x, y, z = three_numbers(values, where)
    return z, y, x
