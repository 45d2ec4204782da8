"""How our stores are laid out: shards, each a file that one job writes; and metadata.

These are OME-Zarr 0.5 in zarr version 3, as specified at ngff.openmicroscopy.org/0.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, divide_up, zyx
from ffn.io.store_names import MAIN, METADATA, OURS
from ffn.io.volume import LEVEL_OF_IDS, Placement

if TYPE_CHECKING:
    from ffn.io.foreign.locations import Folder

CHUNK = 64  # voxels along an axis that are compressed together, and read at least
MAX_SHARD = 512  # voxels along an axis
MAX_SHARD_BYTES = 2**27  # uncompressed: 512³ of uint8, 256³ of uint64; a job holds a few; our choice
VERSION = "0.5"
AXES = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
CHECKSUM = {"name": "crc32c"}  # reading a flipped bit is an error
LEVEL = 3  # of zstd; images are noise to it
ROWS_PER_CHUNK = 2**18  # of a table; our choice


def shard_shape(shape_zyx: ZYX, itemsize: int) -> ZYX:
    """Choose the shape of the shards of a volume.

    Examples
    --------
    >>> shard_shape((2000, 2000, 2000), 8), shard_shape((10, 100, 2000), 1)
    ((256, 256, 256), (10, 128, 512))
    """
    chunk = chunk_shape(shape_zyx)
    shard = [min(MAX_SHARD, -(-n // c) * c) for n, c in zip(shape_zyx, chunk, strict=True)]
    while shard[0] * shard[1] * shard[2] * itemsize > MAX_SHARD_BYTES:
        longest = shard.index(max(shard))
        if shard[longest] <= CHUNK:
            break
        shard[longest] = next(n for n in (256, 128, CHUNK) if n < shard[longest])
    return zyx(shard)


def chunk_shape(shape_zyx: ZYX) -> ZYX:
    """Return the shape of the chunks in a shard."""
    return zyx(min(n, CHUNK) for n in shape_zyx)


@dataclass(frozen=True)
class Shards:
    """The shards of a volume, counted from its first voxel.

    Examples
    --------
    >>> shards = Shards(Box((1, 0, 0), (9, 4, 4)), (4, 4, 4))
    >>> [str(box) for box in shards.boxes()], shards.key(Box((5, 0, 0), (9, 4, 4)))
    (['1:5,0:4,0:4', '5:9,0:4,0:4'], 'c/1/0/0')
    """

    box: Box
    shape_zyx: ZYX

    @property
    def number(self) -> int:
        """How many there are."""
        return math.prod(divide_up(self.box.shape, self.shape_zyx))

    def boxes(self) -> list[Box]:
        """Return the voxels of each shard, in zyx order."""
        return list(self.box.blocks(self.shape_zyx))

    def layers(self) -> list[Box]:
        """Return the voxels of each layer of shards, which are those with the same z."""
        return list(self.box.blocks((self.shape_zyx[0], *self.box.shape[1:])))

    def touched_by(self, box: Box) -> Iterator[Box]:
        """Yield the voxels of each shard that has voxels in `box`."""
        places = zip(box.start, box.stop, self.box.start, self.shape_zyx, strict=True)
        starts = [origin + (start - origin) // n * n for start, _, origin, n in places]
        for corner in Box(zyx(starts), box.stop).blocks(self.shape_zyx):
            yield Box.from_shape(self.shape_zyx, corner.start).intersect(self.box)

    def key(self, shard: Box) -> str:
        """Return the name of a shard's file in the folder of the array."""
        numbers = zip(shard.start, self.box.start, self.shape_zyx, strict=True)
        return "/".join(["c", *(str((start - origin) // n) for start, origin, n in numbers)])


def array_metadata(shape_zyx: ZYX, dtype: np.dtype, shard_zyx: ZYX, level_of_ids: int = LEVEL_OF_IDS) -> dict[str, Any]:
    """Describe an array of voxels in shards of `shard_zyx`."""
    sharding = {
        "chunk_shape": chunk_shape(shape_zyx),
        "codecs": _compressed(dtype, level_of_ids),
        "index_codecs": [LITTLE_ENDIAN, CHECKSUM],
        "index_location": "end",
    }
    codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    return {**_array(shape_zyx, dtype, shard_zyx, codecs), "dimension_names": list("zyx")}


def table_metadata(shape: tuple[int, ...], dtype: np.dtype) -> dict[str, Any]:
    """Describe a table, an array of any shape."""
    rows = (min(max(n, 1), ROWS_PER_CHUNK) for n in shape[:1])
    return _array(shape, dtype, (*rows, *(max(n, 1) for n in shape[1:])), _compressed(dtype))


def image_metadata(name: str, placement: Placement, dtype: np.dtype, ours: dict[str, Any]) -> dict[str, Any]:
    """Describe the group of a volume: an image with one mip, in nm; one of 64 bit has ids, which viewers colour."""
    size = [float(side) for side in placement.voxel_size_zyx_nm]
    centre = np.multiply(placement.box.start, size).tolist()  # as all tools of the field, with 0 in that of voxel 0
    place = [{"type": "scale", "scale": size}, {"type": "translation", "translation": centre}]
    datasets = [{"path": MAIN, "coordinateTransformations": place}]
    image = {"name": name, "axes": AXES, "datasets": datasets}
    label: dict[str, Any] = {"image-label": {}} if dtype == np.uint64 else {}
    return group_metadata({"ome": {"version": VERSION, "multiscales": [image], **label}, OURS: ours})


def group_metadata(attributes: dict[str, Any]) -> dict[str, Any]:
    """Describe a group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def our_attributes(folder: Folder) -> dict[str, Any]:
    """Return our stages' entry in the metadata of a group, given the group or its array; else empty."""
    metadata = folder.json(METADATA)
    ours = ours_in(metadata)
    above = folder.above()
    if ours is not None and metadata.get("node_type") == "array" and above:
        return our_attributes(above[0])
    if ours is None and ours_in(folder.below(MAIN).json(METADATA)) is not None:
        raise VolumeError(f"{folder.address}: is not finished, expected a whole volume. Rerun its stage")
    return ours or {}


def ours_in(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """Return our entry in the metadata of a group or an array, None if another program wrote them."""
    attributes = metadata.get("attributes")
    ours = attributes.get(OURS) if isinstance(attributes, dict) else None
    return ours if isinstance(ours, dict) else None


def _compressed(dtype: np.dtype, level_of_ids: int = LEVEL_OF_IDS) -> list[dict]:
    level = level_of_ids if dtype.itemsize == 8 else LEVEL
    return [LITTLE_ENDIAN, {"name": "zstd", "configuration": {"level": level, "checksum": False}}, CHECKSUM]


def _array(shape: tuple[int, ...], dtype: np.dtype, chunk: tuple[int, ...], codecs: list[dict]) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": codecs,
        "fill_value": dtype.type(0).item(),
        "attributes": {OURS: {}},
    }
