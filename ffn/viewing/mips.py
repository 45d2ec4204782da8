"""The mips of an exported volume: planned, and written shard by shard, each from the finer one, in any format."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorstore as ts

from ffn.geometry import ZYX, Box, Grid, VoxelSize, cut
from ffn.io.coarser import Downsample, Scale, next_scale
from ffn.io.volume import Read

CHUNK_ZYX: ZYX = (64, 64, 64)
SHARD_BYTES = 2**26  # decoded; a shard is one transaction, which needs about four times this memory
PIECE_ZYX: ZYX = (128, 128, 128)  # downsampled at a time, from up to 256³ voxels
CACHE_BYTES = 2**26  # with an odd offset, neighbouring pieces of a mip share source chunks


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
class Pyramid:
    """A volume with all its mips, in one format. The same input gives the same bytes."""

    name: str  # of the volume and the format
    scales: Sequence[Scale]
    open_mip: Callable[[int], ts.TensorStore]  # with axes zyx in full-volume coordinates of the mip
    shard_zyx: Sequence[ZYX]  # voxels of each mip that are in one file; the grid of shards starts at the first voxel
    downsample: Downsample
    read: Read  # the voxels of mip 0, in the type that is stored; see `one_at_a_time`

    def shards(self, mip: int) -> Grid:
        """Return the shards of a mip."""
        return cut(self.scales[mip].box, self.shard_zyx[mip])

    def copy_shard(self, shard: Box) -> np.ndarray:
        """Write one shard of mip 0, and return its voxels."""
        voxels = self.read(shard)
        with ts.Transaction() as transaction:  # so that the file appears complete
            self.open_mip(0).with_transaction(transaction)[shard.slices()] = voxels
        return voxels

    def downsample_shard(self, mip: int, shard: Box) -> None:
        """Write one shard of a further mip, piece by piece from the finer one."""
        finer = ts.downsample(self.open_mip(mip - 1), self.scales[mip].factors_zyx, self.downsample)
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
