"""The mips of an image and their places, as OME-Zarr, N5, COSEM and Neuroglancer describe them.

`ome-zarr-models` reads only OME-Zarr from 0.4 on, and refuses images in which other programs left something out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import VoxelSize
from ffn.io.faults import unreadable
from ffn.io.foreign.attributes import UNKNOWN, Mip, axis_names, mip_of_array, mip_of_axes, three_numbers, triple
from ffn.io.foreign.locations import Folder

PRECOMPUTED = "neuroglancer_precomputed"
ENCODINGS = ("raw", "png", "jpeg", "compressed_segmentation")  # of precomputed, that TensorStore reads
N5 = "attributes.json"
OLD_AXES = ("t", "c", "z", "y", "x")  # of OME-Zarr 0.1 and 0.2, which do not name them

Attributes = Mapping[str, Any]


def find_mips(folder: Folder, name: str) -> list[Mip]:
    """Return the mips of an image in a group, finest first; of an array, that one.

    Parameters
    ----------
    folder : Folder
        A group or an array.
    name : str
        Name of the volume, for messages.

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
            return [_in_image(_zarr_mip(_zarr(folder), name), folder, name)]
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


def _zarr_mip(attributes: Attributes, name: str) -> Mip:
    if "transform" in attributes:
        return replace(_cosem_mip("", attributes["transform"]), names=tuple(axis_names(attributes)))
    return mip_of_array(attributes, name)


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
