"""Find the mips of an image in a folder: OME-Zarr, zarr, N5 or Neuroglancer precomputed, by its metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.io.foreign.axes import axis_names
from ffn.io.foreign.locations import Folder
from ffn.io.foreign.mips import Mip, array_mip, n5_mips, ome_mips, precomputed_mips
from ffn.io.foreign.units import voxel_size_and_offset

PRECOMPUTED = "neuroglancer_precomputed"


def find_mips(folder: Folder, driver: str, name: str) -> list[Mip]:
    """Return the mips of an image, finest first; of a single array, that one.

    Parameters
    ----------
    folder : Folder
        A group or an array.
    driver : str
        Of TensorStore; ``auto`` takes what is there.
    name : str
        Name of the volume, for messages.

    Raises
    ------
    VolumeError
        If the metadata are damaged or contradict each other.
    """
    try:
        return _find_mips(folder, driver, name)
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as reason:
        raise VolumeError(
            f"{name}: its metadata cannot be read ({reason!r}), expected voxel size, place and units of z, y and x. "
            "Correct them"
        ) from None


def _find_mips(folder: Folder, driver: str, name: str) -> list[Mip]:
    info = folder.json("info") if driver in ("auto", PRECOMPUTED) else {}
    mips = precomputed_mips(info, name)
    if mips or driver == PRECOMPUTED:
        return mips or [Mip("")]
    zarr, n5 = _zarr(folder, driver), _n5(folder, driver)
    if "dimensions" in n5:
        return [_known(array_mip("", n5, {}, name), folder, driver, name)]
    if folder.json(".zarray") or folder.json("zarr.json").get("node_type") == "array":
        return [_known(_zarr_mip(zarr, name), folder, driver, name)]
    return _group_mips(folder, driver, name) or [Mip("")]  # TensorStore says what is wrong


def driver_of(folder: Folder, driver: str) -> str:
    """Return TensorStore's driver for an array; ``auto`` only where the metadata do not tell.

    TensorStore's own search fails in a bucket that refuses to say what is missing.
    """
    if driver != "auto":
        return driver
    if folder.json(".zarray"):
        return "zarr"
    if folder.json("zarr.json"):
        return "zarr3"
    if "dimensions" in folder.json("attributes.json"):
        return "n5"
    return PRECOMPUTED if "scales" in folder.json("info") else "auto"


def _group_mips(folder: Folder, driver: str, name: str) -> list[Mip]:
    mips = ome_mips(_zarr(folder, driver), name)
    return mips or n5_mips(_n5(folder, driver), lambda path: _n5(folder.below(path), driver), name)


def _known(own: Mip, folder: Folder, driver: str, name: str) -> Mip:
    """Return the array as a mip of the image that it belongs to, or by its own attributes where it is in no image."""
    above = folder.above()
    if above is None:
        return own
    around, path = above
    mips = _group_mips(around, driver, name)
    found = next((mip for mip in mips if mip.path.strip("/") == path), None)
    if found is None:
        return own
    if found.voxel_size_zyx_nm is None and own.voxel_size_zyx_nm is not None:
        return replace(own, names=own.names or found.names)
    return replace(found, path="")


def _zarr_mip(attributes: dict[str, Any], name: str) -> Mip:
    names = tuple(axis_names(attributes))
    if "transform" in attributes:
        return replace(array_mip("", attributes, {}, name), names=names)
    size, start = voxel_size_and_offset(attributes, name)
    if size is None:
        return Mip("", names=names)
    z, y, x = np.multiply(start, size).tolist()
    return Mip("", size, (z, y, x), ("nm",) * 3, names)


def _zarr(folder: Folder, driver: str) -> dict[str, Any]:
    """Return the user attributes of an array or a group in zarr; empty if it has none."""
    if driver == "n5":
        return {}
    attributes = folder.json(".zattrs") or folder.json("zarr.json").get("attributes", {})
    return attributes if isinstance(attributes, dict) else {}


def _n5(folder: Folder, driver: str) -> dict[str, Any]:
    return folder.json("attributes.json") if driver in ("auto", "n5") else {}
