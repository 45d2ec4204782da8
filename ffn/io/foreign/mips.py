"""The resolutions of an image and their places, as OME-Zarr, N5 and COSEM describe them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize
from ffn.io.foreign.units import MAX_SHIFT, three_numbers, to_nm, whole_voxels

OLD_AXES = ("t", "c", "z", "y", "x")  # of OME-Zarr 0.1 and 0.2, which do not name them
UNKNOWN = "unknown"

Attributes = Mapping[str, Any]


@dataclass(frozen=True)
class Mip:
    """One resolution of an image; all triples are zyx.

    Parameters
    ----------
    path : str
        Of the array in the folder of the image.
    scale, translation : tuple of float
        Side of a voxel, and place of the centre of the first one, in `units`.
    units : tuple of str
        ``unknown`` where none is given.
    names : tuple of str
        Names of all axes in the order of storage; empty where none are given.
    finest : tuple of float, optional
        `scale` of the finest mip, where it is another one.

    Raises
    ------
    ValueError
        If a side is not positive, a place is not finite, or the units are not three.
    """

    path: str
    scale: VoxelSize = (1.0, 1.0, 1.0)
    translation: VoxelSize = (0.0, 0.0, 0.0)
    units: tuple[str, ...] = (UNKNOWN,) * 3
    names: tuple[str, ...] = ()
    finest: VoxelSize | None = None

    def __post_init__(self) -> None:
        """Refuse what damaged metadata may say."""
        if not all(0 < side < math.inf for side in self.scale) or not all(map(math.isfinite, self.translation)):
            raise ValueError(f"scale {self.scale}, translation {self.translation}")
        if len(self.units) != 3 or not all(isinstance(unit, str) for unit in self.units):
            raise ValueError(f"units {self.units}")

    @property
    def voxel_size_zyx_nm(self) -> VoxelSize | None:
        """Side of a voxel in nm, None where the unit is unknown."""
        return to_nm(self.scale, self.units)

    def start_zyx(self, name: str) -> ZYX:
        """Return the place of the first voxel, in voxels of this mip.

        A coarse voxel covers several fine ones, so its centre is not where that of the first fine one is. Some programs
        say so in the translation, others give all mips the same.

        Raises
        ------
        VolumeError
            If it is not a whole number of voxels.
        """
        scale, translation = np.asarray(self.scale), np.asarray(self.translation)
        same_centre = translation / scale
        same_corner = same_centre - (1 - np.asarray(self.finest or scale) / scale) / 2
        is_whole = np.abs(same_centre - same_centre.round()) <= MAX_SHIFT
        give = "Give" if self.finest in (None, self.scale) else "Name the finest array, of which mip makes it, or give"
        advice = f"{give} the place of the first voxel: ffn ingest --offset, or labels_offset_zyx for labels"
        found = np.where(is_whole, same_centre, same_corner)
        return whole_voxels(found, f"{name}: translation is {self.translation}", advice)


def ome_mips(attributes: Attributes, name: str) -> list[Mip]:
    """Return the mips that the attributes of an OME-Zarr group describe, finest first; empty if there are none.

    Raises
    ------
    VolumeError
        If the description is damaged, or has no z, y and x.
    """
    content = attributes.get("ome", attributes)
    images = content.get("multiscales") if isinstance(content, Mapping) else None
    if not images:
        return []
    try:
        return _from_finest([_ome_mip(images[0], dataset) for dataset in images[0]["datasets"]])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as reason:
        raise VolumeError(
            f"{name}: its OME-Zarr metadata cannot be read ({reason!r}), expected axes z, y and x and a scale of every "
            "dataset. Correct them, or name an array inside"
        ) from None


def n5_mips(group: Attributes, attributes_of: Callable[[str], Attributes], name: str) -> list[Mip]:
    """Return the mips of a group of N5 datasets, finest first; empty if there are none.

    Parameters
    ----------
    group : mapping
        Attributes of the group.
    attributes_of : callable
        Returns the attributes of a dataset by its path in the group.
    name : str
        Name of the volume, for messages.
    """
    mips = []
    for described in _datasets(group):
        path = described["path"]
        attributes = attributes_of(path)
        if "dimensions" not in attributes:
            break
        mips.append(array_mip(path, {**described, **attributes}, group, name))
    return _from_finest(mips)


def precomputed_mips(info: Attributes, name: str) -> list[Mip]:
    """Return the mips of a Neuroglancer precomputed volume, finest first; empty if it is none.

    Raises
    ------
    VolumeError
        If the description is damaged.
    """
    mips = []
    for scale in info.get("scales", ()):
        size = _from_xyz(scale.get("resolution"), f"{name}: resolution")
        offset = _from_xyz(scale.get("voxel_offset", (0, 0, 0)), f"{name}: voxel_offset")
        z, y, x = np.multiply(size, offset).tolist()
        mips.append(Mip("", size, (z, y, x), ("nm",) * 3))
    return mips


def array_mip(path: str, attributes: Attributes, group: Attributes, name: str) -> Mip:
    """Return the place of an array by attributes of COSEM (`transform`), Fiji (`pixelResolution`) or Paintera.

    Parameters
    ----------
    path : str
        Of the array in its group.
    attributes, group : mapping
        Attributes of the array and of its group. A voxel size that only the group has is that of full resolution.
    name : str
        Name of the volume, for messages.

    Raises
    ------
    VolumeError
        If an attribute is not three numbers.
    """
    if "transform" in attributes:
        return _cosem_mip(path, attributes["transform"], name)
    values = {**group, **attributes}
    factors = attributes.get("downsamplingFactors", (1, 1, 1))
    size: Any = (1, 1, 1)
    units: tuple[str, ...] = (UNKNOWN,) * 3
    if "pixelResolution" in values:
        size = values["pixelResolution"]
        if isinstance(size, Mapping):
            size, units = size.get("dimensions"), (str(size.get("unit", UNKNOWN)),) * 3
    elif "resolution" in values:
        size, units = values["resolution"], tuple(values.get("units", ("nm",) * 3))[::-1]
        factors = (1, 1, 1) if "resolution" in attributes else factors
    scale = np.multiply(_from_xyz(size, f"{name}: voxel size"), _from_xyz(factors, f"{name}: downsamplingFactors"))
    z, y, x = scale.tolist()
    return Mip(path, (z, y, x), _from_xyz(values.get("offset", (0, 0, 0)), f"{name}: attribute offset"), units)


def _ome_mip(image: Attributes, dataset: Attributes) -> Mip:
    axes = [axis if isinstance(axis, Mapping) else {"name": axis} for axis in image.get("axes", OLD_AXES)]
    names = [axis["name"].lower() for axis in axes]
    scale, translation = np.ones(len(axes)), np.zeros(len(axes))
    for step in [*dataset.get("coordinateTransformations", ()), *image.get("coordinateTransformations", ())]:
        if step["type"] == "scale":
            scale, translation = scale * step["scale"], translation * step["scale"]
        elif step["type"] == "translation":
            translation = translation + step["translation"]
        elif step["type"] != "identity":
            raise ValueError(f"transformation {step['type']}")
    return _mip(dataset["path"], names, scale, translation, [axis.get("unit") or UNKNOWN for axis in axes])


def _cosem_mip(path: str, transform: Attributes, name: str) -> Mip:
    try:
        units = transform.get("units", (UNKNOWN,) * 3)
        mip = _mip(path, transform["axes"], np.asarray(transform["scale"]), np.asarray(transform["translate"]), units)
    except (KeyError, TypeError, ValueError, IndexError) as reason:
        raise VolumeError(
            f"{name}: attribute transform cannot be read ({reason!r}), expected axes, scale, translate and units of "
            "z, y and x. Correct it"
        ) from None
    return replace(mip, names=())  # these are in the order of NumPy, whatever that of storage is


def _mip(path: str, names: Sequence[str], scale: np.ndarray, translation: np.ndarray, units: Sequence[str]) -> Mip:
    zyx = [names.index(axis) for axis in "zyx"]
    z, y, x = (float(scale[axis]) for axis in zyx)
    tz, ty, tx = (float(translation[axis]) for axis in zyx)
    return Mip(path, (z, y, x), (tz, ty, tx), tuple(units[axis] for axis in zyx), tuple(names))


def _from_finest(mips: list[Mip]) -> list[Mip]:
    return [replace(mip, finest=mips[0].scale) for mip in mips]


def _datasets(group: Attributes) -> Iterator[Attributes]:
    """Yield the datasets that a group of N5 may have: those that COSEM describes, else s0, s1, …."""
    try:
        yield from [{**dataset, "path": dataset["path"]} for dataset in group["multiscales"][0]["datasets"]]
    except (KeyError, TypeError, IndexError):
        yield from ({"path": f"s{mip}"} for mip in itertools.count())


def _from_xyz(values: Any, where: str) -> VoxelSize:
    x, y, z = three_numbers(values, where)
    return z, y, x
