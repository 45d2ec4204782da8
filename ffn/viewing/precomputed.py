"""Volumes with mips, each written shard by shard from the finer one; and as sharded Neuroglancer precomputed volumes.

Source of the format: Neuroglancer, ``src/datasource/precomputed/{volume,sharded}.md``. Axes are zyx here, xyz there.
"""

from __future__ import annotations

import functools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, Grid, VoxelSize, cut, divide_up, zyx
from ffn.io.atomic import write_text
from ffn.io.coarser import Downsample, Scale, next_scale
from ffn.io.volume import Read

CHUNK_ZYX: ZYX = (64, 64, 64)
SHARD_BYTES = 2**26  # decoded; a shard is one transaction, which needs about four times this memory
PIECE_ZYX: ZYX = (128, 128, 128)  # downsampled at a time, from up to 256³ voxels
CACHE_BYTES = 2**26  # with an odd offset, neighbouring pieces of a mip share source chunks
INFO = "info"  # file with the metadata
JPEG_QUALITY = 90


def plan_scales(box: Box, voxel_size_zyx_nm: VoxelSize) -> list[Scale]:
    """Plan the mips of a volume, down to a mip that fits into one chunk; see `ffn.io.coarser.next_scale`.

    >>> [s.voxel_size_zyx_nm for s in plan_scales(Box((0, 0, 0), (100, 200, 200)), (40.0, 16.0, 16.0))]
    [(40.0, 16.0, 16.0), (40.0, 32.0, 32.0), (80.0, 64.0, 64.0)]
    """
    scales = [Scale(box, voxel_size_zyx_nm)]
    while any(n > chunk for n, chunk in zip(scales[-1].box.shape, CHUNK_ZYX, strict=True)):
        scales.append(next_scale(scales[-1]))
    return scales


@dataclass(frozen=True)
class Encoding:
    """Storage format of one kind of volume."""

    kind: Literal["image", "segmentation"]
    dtype: str  # of a voxel
    chunks: Literal["jpeg", "png", "raw", "compressed_segmentation"]
    shards: Literal["raw", "gzip"]  # additional compression inside the shards
    downsample: Downsample
    options: dict[str, Any] = field(default_factory=dict)  # further members of the scale's metadata


LABELS = Encoding(
    "segmentation",
    "uint64",
    "compressed_segmentation",
    "gzip",
    "mode",
    {"compressed_segmentation_block_size": [8, 8, 8]},
)


def image_encoding(dtype: np.dtype, wanted: str, name: str) -> Encoding:
    """Return the encoding of an image: the `wanted` one, ``jpeg`` or ``png``, for 8 bits, raw in gzip for 16.

    cloud-volume cannot read PNG of 16 bits, and gzip compresses as well.
    """
    if dtype not in (np.uint8, np.uint16):
        raise ExportError(f"{name}: has type {dtype}, expected an image of uint8 or uint16. Ingest it as one of these")
    if dtype == np.uint16:
        return Encoding("image", "uint16", "raw", "gzip", "mean")
    if wanted == "jpeg":
        return Encoding("image", "uint8", "jpeg", "raw", "mean", {"jpeg_quality": JPEG_QUALITY})
    return Encoding("image", "uint8", "png", "raw", "mean")


class Pyramid(ABC):
    """A volume with all its mips, in one format. The same input gives the same bytes.

    `read` returns the voxels of mip 0, in the type that is stored; see `one_at_a_time`.
    """

    def __init__(self, folder: Path, encoding: Encoding, scales: Sequence[Scale], read: Read) -> None:
        self.folder, self.encoding, self.scales, self.read = folder, encoding, scales, read

    @abstractmethod
    def create(self) -> None:
        """Write the metadata without voxels, unless they are there."""

    @abstractmethod
    def open_mip(self, mip: int) -> ts.TensorStore:
        """Open a mip, with axes zyx in full-volume coordinates of the mip."""

    @abstractmethod
    def shard_zyx(self, mip: int) -> ZYX:
        """Return the voxels of a mip that are in one file; the grid of shards starts at the first voxel."""

    def shards(self, mip: int) -> Grid:
        """Return the shards of a mip."""
        return cut(self.scales[mip].box, self.shard_zyx(mip))

    def copy_shard(self, shard: Box) -> np.ndarray:
        """Write one shard of mip 0, and return its voxels."""
        voxels = self.read(shard)
        with ts.Transaction() as transaction:  # so that the file appears complete
            self.open_mip(0).with_transaction(transaction)[shard.slices()] = voxels
        return voxels

    def downsample_shard(self, mip: int, shard: Box) -> None:
        """Write one shard of a further mip, piece by piece from the finer one."""
        finer = ts.downsample(self.open_mip(mip - 1), self.scales[mip].factors_zyx, self.encoding.downsample)
        with ts.Transaction() as transaction:
            target = self.open_mip(mip).with_transaction(transaction)
            for piece in shard.blocks(PIECE_ZYX):
                target[piece.slices()] = finer[piece.slices()].read().result()


@functools.cache
def shared_context() -> ts.Context:
    """Return the context of all mips, whose cache they share. Files are replaced whole, so none is locked."""
    return ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}, "file_io_locking": {"mode": "none"}})


def one_at_a_time(read: Read) -> Read:
    """Return a reader that several threads may call: not every format has one."""
    reading = threading.Lock()

    def locked(box: Box) -> np.ndarray:
        with reading:
            return read(box)

    return locked


class Precomputed(Pyramid):
    """A precomputed volume."""

    def create(self) -> None:
        """Write ``info``."""
        if (self.folder / INFO).exists():
            return
        context, memory = ts.Context(), {"driver": "memory", "path": "volume/"}
        for scale in self.scales:
            spec = _new_scale(self.encoding, scale) | {"kvstore": memory}
            ts.open(spec, create=True, open=True, context=context).result()
        files = ts.KvStore.open(memory, context=context).result()
        write_text(self.folder / INFO, files.read(INFO).result().value.decode())

    def open_mip(self, mip: int) -> ts.TensorStore:
        """Open a mip."""
        return open_scale(self.folder, mip, shared_context())

    def shard_zyx(self, mip: int) -> ZYX:
        """Return what TensorStore writes at once."""
        return zyx(self.open_mip(mip).chunk_layout.write_chunk.shape or ())


def open_scale(path: Path, mip: int, context: ts.Context | None = None) -> ts.TensorStore:
    """Open one mip, with axes zyx in full-volume coordinates of that mip."""
    kvstore = {"driver": "file", "path": f"{path.resolve()}/"}
    spec = {"driver": "neuroglancer_precomputed", "kvstore": kvstore, "scale_index": mip}
    return ts.open(spec, open=True, context=context).result()[..., 0].T


def _new_scale(encoding: Encoding, scale: Scale) -> dict[str, Any]:
    """Return how TensorStore creates a mip."""
    return {
        "driver": "neuroglancer_precomputed",
        "multiscale_metadata": {"type": encoding.kind, "data_type": encoding.dtype, "num_channels": 1},
        "scale_metadata": {
            "size": scale.box.shape[::-1],
            "voxel_offset": scale.box.start[::-1],
            "resolution": scale.voxel_size_zyx_nm[::-1],
            "encoding": encoding.chunks,
            "chunk_size": CHUNK_ZYX[::-1],
            "sharding": _sharding(scale.box, encoding),
            **encoding.options,
        },
    }


def _sharding(box: Box, encoding: Encoding) -> dict[str, Any]:
    """Return a layout with shards of at most `SHARD_BYTES` decoded. Chunk ids are Morton codes, so shards are boxes."""
    chunk_bytes = math.prod(CHUNK_ZYX) * np.dtype(encoding.dtype).itemsize
    shard_bits = (SHARD_BYTES // chunk_bytes).bit_length() - 1
    grid: ZYX = divide_up(box.shape, CHUNK_ZYX)
    id_bits = sum((n - 1).bit_length() for n in grid)
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": shard_bits,
        "minishard_bits": 0,
        "shard_bits": max(0, id_bits - shard_bits),
        "minishard_index_encoding": "gzip",
        "data_encoding": encoding.shards,
    }
