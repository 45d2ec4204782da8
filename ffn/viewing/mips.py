"""The mips of an exported volume: planned, and made shard by shard, each from the finer one, in any format."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cut
from ffn.io.block_log import Result
from ffn.io.coarser import Downsample, Scale, next_scale
from ffn.io.volume import Read
from ffn.viewing.blockwise import BlockList

CHUNK_ZYX: ZYX = (64, 64, 64)
SHARD_BYTES = 2**26  # decoded; a shard is one transaction, which needs about four times this memory
PIECE_ZYX: ZYX = (128, 128, 128)  # downsampled at a time, from up to 256³ voxels
CACHE_BYTES = 2**26  # with an odd offset, neighbouring pieces of a mip share source chunks

Count = Callable[[Box, np.ndarray], Result]


def plan_scales(box: Box, voxel_size_zyx_nm: VoxelSize) -> list[Scale]:
    """Plan the mips of a volume, down to a mip that fits into one chunk; see `ffn.io.coarser.next_scale`.

    Parameters
    ----------
    box : Box
        Box of mip 0.
    voxel_size_zyx_nm : tuple of float
        Voxel size of mip 0, nm.

    Examples
    --------
    >>> [s.voxel_size_zyx_nm for s in plan_scales(Box((0, 0, 0), (100, 200, 200)), (40.0, 16.0, 16.0))]
    [(40.0, 16.0, 16.0), (40.0, 32.0, 32.0), (80.0, 64.0, 64.0)]
    """
    scales = [Scale(box, voxel_size_zyx_nm)]
    while any(n > chunk for n, chunk in zip(scales[-1].box.shape, CHUNK_ZYX, strict=True)):
        scales.append(next_scale(scales[-1]))
    return scales


@dataclass(frozen=True)
class Level:
    """One mip as it is stored.

    Parameters
    ----------
    voxels : TensorStore
        With axes zyx, in full-volume coordinates of this mip.
    shard_zyx : tuple of int
        Voxels that are in one file. The grid of shards starts at the first voxel.
    file : callable
        Returns the file of a shard. It appears complete, or not at all if no voxel is above 0.
    """

    voxels: ts.TensorStore
    shard_zyx: ZYX
    file: Callable[[Box], Path]


@dataclass(frozen=True)
class Pyramid:
    """A volume with all its mips, in one format.

    Parameters
    ----------
    name : str
        Of the volume and the format.
    scales : sequence of Scale
        Mips, from `plan_scales`.
    open_level : callable
        Opens a mip by its number.
    downsample : str
        ``mean`` or ``mode``.
    read : callable
        Returns the voxels of a box of mip 0, in the type that is stored. Only one thread calls it at a time, because
        not every reader is thread-safe.
    """

    name: str
    scales: Sequence[Scale]
    open_level: Callable[[int], Level]
    downsample: Downsample
    read: Read

    def shards(self, mip: int, count: Count | None = None) -> BlockList:
        """Return the shards of a mip, which are made of the volume or of the finer mip.

        Memory is about four times `SHARD_BYTES` for each shard in progress, whatever the size of the volume. The same
        input gives the same bytes.

        Parameters
        ----------
        mip : int
            Which mip.
        count : callable, optional
            Gets each shard of mip 0 and its voxels, and returns the result of the block; several threads call it.
        """
        level, scale = self.open_level(mip), self.scales[mip]
        if mip:
            work = partial(downsample_shard, level, self._finer(mip))
        else:
            work = partial(copy_shard, level, one_at_a_time(self.read), count)
        return BlockList(f"{self.name}/{mip}", cut(scale.box, level.shard_zyx), work)

    def _finer(self, mip: int) -> Read:
        """Return what reads the voxels of a mip from the finer one."""
        finer = self.open_level(mip - 1).voxels
        downsampled = ts.downsample(finer, self.scales[mip].factors_zyx, self.downsample)
        return lambda piece: downsampled[piece.slices()].read().result()


def copy_shard(level: Level, read: Read, count: Count | None, shard: Box) -> Result:
    """Write one shard of mip 0; return what was counted in it."""
    voxels = read(shard)
    with _new_file(level, shard) as target:
        target[shard.slices()] = voxels
    _require_file(level, shard, bool(voxels.any()))
    return count(shard, voxels) if count else {}


def downsample_shard(level: Level, read: Read, shard: Box) -> Result:
    """Write one shard of a further mip, piece by piece from the finer one."""
    has_voxels = False
    with _new_file(level, shard) as target:
        for piece in shard.blocks(PIECE_ZYX):
            voxels = read(piece)
            target[piece.slices()] = voxels
            has_voxels = has_voxels or bool(voxels.any())
    _require_file(level, shard, has_voxels)
    return {}


@functools.cache
def shared_context() -> ts.Context:
    """Return the context of all mips, whose cache they share. Each file has one writer, so none is locked."""
    return ts.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}, "file_io_locking": {"mode": "none"}})


def one_at_a_time(read: Read) -> Read:
    """Return a reader that several threads may call."""
    reading = threading.Lock()

    def locked(box: Box) -> np.ndarray:
        with reading:
            return read(box)

    return locked


@contextlib.contextmanager
def _new_file(level: Level, shard: Box) -> Iterator[ts.TensorStore]:
    """Yield where to write the voxels of a shard, whose file then appears complete."""
    level.file(shard).unlink(missing_ok=True)  # TensorStore would read what it does not trust
    with ts.Transaction() as transaction:
        yield level.voxels.with_transaction(transaction)


def _require_file(level: Level, shard: Box, has_voxels: bool) -> None:
    """Only a shard without a voxel above 0 may have no file."""
    if has_voxels and not level.file(shard).exists():
        raise VolumeError(
            f"{level.file(shard)}: is missing after it was written, expected a single writer. Repeat the job"
        )
