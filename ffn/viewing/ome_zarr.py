"""Images and labels as OME-Zarr 0.5 with mips: zarr 3 in shards, which napari, Fiji and WEBKNOSSOS open.

Source of the format: ngff.openmicroscopy.org/0.5. An image is a group with an array for each mip, ``0`` the finest.
Labels are such groups in the folder ``labels`` of the image that they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from ffn.geometry import ZYX, VoxelSize
from ffn.io.atomic import write_json
from ffn.io.coarser import Scale
from ffn.io.ome_zarr import AXES, VERSION, array_metadata, group_metadata
from ffn.io.shards import shard_shape
from ffn.io.store_names import METADATA
from ffn.viewing.precomputed import SHARD_BYTES, Pyramid, shared_context

LABELS = "labels"


class OmeZarr(Pyramid):
    """An image, or labels."""

    def create(self) -> None:
        """Write the metadata of the group and of its arrays."""
        for mip in range(len(self.scales)):
            ts.open(self._spec(mip), create=True, open=True, context=shared_context()).result()
        finest = self.scales[0].voxel_size_zyx_nm
        image = {
            "name": self.folder.stem,
            "type": self.encoding.downsample,
            "axes": AXES,
            "datasets": [_dataset(str(mip), scale, finest) for mip, scale in enumerate(self.scales)],
        }
        source = {"image-label": {"source": {"image": "../../"}}} if self.folder.parent.name == LABELS else {}
        _write_group(self.folder, {"multiscales": [image], **source})

    def open_mip(self, mip: int) -> ts.TensorStore:
        """Open an array."""
        array = ts.open(self._spec(mip), open=True, context=shared_context()).result()
        return array[ts.d[:].translate_to[self.scales[mip].box.start]]

    def shard_zyx(self, mip: int) -> ZYX:
        """Return the shape of a shard."""
        return shard_shape(self.scales[mip].box.shape, np.dtype(self.encoding.dtype).itemsize, SHARD_BYTES)

    def _spec(self, mip: int) -> dict[str, Any]:
        metadata = array_metadata(self.scales[mip].box.shape, np.dtype(self.encoding.dtype), self.shard_zyx(mip))
        return {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{(self.folder / str(mip)).resolve()}/"},
            # Without our attributes: empty shards are left out, which a store between stages may not do.
            "metadata": {**metadata, "attributes": {}},
        }


def write_labels_group(image: Path, names: Iterable[str]) -> None:
    """Write the list of the labels in an image, and a group around them if there is no image."""
    _write_group(image / LABELS, {"labels": sorted(names)})
    if not (image / METADATA).exists():
        _write_group(image, {})


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
