"""Images and labels as OME-Zarr 0.5 with mips: zarr 3 in shards, which napari, Fiji and WEBKNOSSOS open.

Source of the format: ngff.openmicroscopy.org/0.5. An image is a group with an array for each mip, ``0`` the finest.
Labels are such groups in the folder ``labels`` of the image that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.geometry import VoxelSize
from ffn.io.atomic import write_json
from ffn.io.coarser import Downsample, Scale
from ffn.io.ome_zarr import AXES, VERSION, array_metadata, group_metadata
from ffn.io.shards import shard_shape
from ffn.io.store_names import METADATA
from ffn.io.volume import Read
from ffn.viewing.precomputed import SHARD_BYTES, Pyramid, shared_context

LABELS = "labels"


def pyramid(group: Path, dtype: np.dtype, downsample: Downsample, scales: Sequence[Scale], read: Read) -> Pyramid:
    """Return the image of a type in a folder, which `create` has created, to write it."""

    def open_mip(mip: int) -> ts.TensorStore:
        spec = _spec(group / str(mip), dtype, scales[mip])
        array = ts.open(spec, open=True, context=shared_context()).result()
        return array[ts.d[:].translate_to[scales[mip].box.start]]

    shards = [shard_shape(scale.box.shape, dtype.itemsize, SHARD_BYTES) for scale in scales]
    return Pyramid(f"ome-zarr/{group.stem}", scales, open_mip, shards, downsample, read)


def create(group: Path, dtype: np.dtype, downsample: Downsample, scales: Sequence[Scale]) -> None:
    """Write the metadata of an image and of its mips, without voxels, unless they are there."""
    for mip, scale in enumerate(scales):
        ts.open(_spec(group / str(mip), dtype, scale), create=True, open=True, context=shared_context()).result()
    finest = scales[0].voxel_size_zyx_nm
    image = {
        "name": group.stem,
        "type": downsample,
        "axes": AXES,
        "datasets": [_dataset(str(mip), scale, finest) for mip, scale in enumerate(scales)],
    }
    source = {"image-label": {"source": {"image": "../../"}}} if group.parent.name == LABELS else {}
    _write_group(group, {"multiscales": [image], **source})


def write_labels_group(image: Path, names: Iterable[str]) -> None:
    """Write the list of the labels in an image, and a group around them if there is no image."""
    _write_group(image / LABELS, {"labels": sorted(names)})
    if not (image / METADATA).exists():
        _write_group(image, {})


def _spec(folder: Path, dtype: np.dtype, scale: Scale) -> dict[str, Any]:
    """Return how TensorStore creates or opens the array of one mip."""
    shard_zyx = shard_shape(scale.box.shape, dtype.itemsize, SHARD_BYTES)
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder.resolve()}/"},
        # Without our attributes: shards without a voxel above 0 are left out, which a store between stages may not do.
        "metadata": {**array_metadata(scale.box.shape, dtype, shard_zyx), "attributes": {}},
    }


def _dataset(path: str, scale: Scale, finest_nm: VoxelSize) -> dict[str, Any]:
    """Describe one mip. The origin is the centre of voxel 0 of mip 0, as in napari and others of the field."""
    sides = zip(scale.box.start, scale.voxel_size_zyx_nm, finest_nm, strict=True)
    centre = [(start + 0.5) * side - 0.5 * finest for start, side, finest in sides]
    transformations = [
        {"type": "scale", "scale": list(scale.voxel_size_zyx_nm)},
        {"type": "translation", "translation": centre},
    ]
    return {"path": path, "coordinateTransformations": transformations}


def _write_group(folder: Path, content: dict[str, Any]) -> None:
    write_json(folder / METADATA, group_metadata({"ome": {"version": VERSION, **content}}))
