"""The mips of an exported volume: planned, and written shard by shard, each from the finer one, in any format."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import tensorstore as ts

from ffn.geometry import ZYX, Box, VoxelSize, divide_up, zyx
from ffn.io.volume import Read
from ffn.progress import progress_bar

CHUNK_ZYX: ZYX = (64, 64, 64)
SHARD_BYTES = 2**26  # decoded; a shard is one transaction, which needs about four times this memory
PIECE_ZYX: ZYX = (128, 128, 128)  # downsampled at a time, from up to 256³ voxels
CACHE_BYTES = 2**26  # with an odd offset, neighbouring pieces of a mip share source chunks

Visit = Callable[[Box, np.ndarray], object]
Downsample = Literal["mean", "mode"]


@dataclass(frozen=True)
class Scale:
    """One mip: its box and voxel size.

    Parameters
    ----------
    box : Box
        Box in voxels of this mip.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.
    factors_zyx : tuple of int
        Downsampling factors relative to the previous mip.
    """

    box: Box
    voxel_size_zyx_nm: VoxelSize
    factors_zyx: ZYX = (1, 1, 1)


def plan_scales(box: Box, voxel_size_zyx_nm: VoxelSize) -> list[Scale]:
    """Plan the mips of a volume, down to a mip that fits into one chunk.

    An axis is halved unless its voxels are already twice as long as the shortest side, so that anisotropic voxels
    become more isotropic.

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
        scales.append(_next_scale(scales[-1]))
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


def write_mips(
    name: str,
    scales: list[Scale],
    open_level: Callable[[Scale], Level],
    downsample: Downsample,
    read: Read,
    visit: Visit | None = None,
    threads: int = 1,
) -> None:
    """Write all mips of a volume, or complete what an interrupted call wrote.

    Existing shards are kept. Memory is about four times `SHARD_BYTES` for each shard in progress, whatever the size of
    the volume. The same input gives the same bytes.

    Parameters
    ----------
    name : str
        Of the volume, for the progress bar.
    scales : list of Scale
        Mips, from `plan_scales`.
    open_level : callable
        Creates a mip, or opens it.
    downsample : str
        ``mean`` or ``mode``.
    read, visit, threads
        See `ffn.viewing.precomputed.write_volume`.
    """
    reading = threading.Lock()

    def load(shard: Box) -> np.ndarray:
        with reading:
            voxels = read(shard)
        if visit is not None:
            visit(shard, voxels)
        return voxels

    finer: ts.TensorStore | None = None
    with (
        progress_bar(sum(scale.box.num_voxels for scale in scales), name, "voxel") as bar,
        ThreadPoolExecutor(threads) as pool,
    ):
        for scale in scales:
            level = open_level(scale)
            source = None if finer is None else ts.downsample(finer, scale.factors_zyx, downsample)
            work = partial(write_shard, level, source, load=load, always_load=visit is not None)
            shards = list(scale.box.blocks(level.shard_zyx))
            for shard, _ in zip(shards, pool.map(work, shards), strict=True):
                bar.update(shard.num_voxels)
            finer = level.voxels


def write_shard(level: Level, source: ts.TensorStore | None, shard: Box, load: Read, always_load: bool) -> None:
    """Write one shard unless it exists: from the volume, or piece by piece from the finer mip.

    A shard without a voxel above 0 has no file, and is cheap to process again.
    """
    missing = not level.file(shard).exists()
    if source is None and (missing or always_load):
        voxels = load(shard)
    if not missing:
        return
    with ts.Transaction() as transaction:
        target = level.voxels.with_transaction(transaction)
        if source is None:
            target[shard.slices()] = voxels
            return
        for piece in shard.blocks(PIECE_ZYX):
            target[piece.slices()] = source[piece.slices()].read().result()


def _next_scale(scale: Scale) -> Scale:
    shortest = min(scale.voxel_size_zyx_nm)
    factors = zyx(2 if side < 2 * shortest else 1 for side in scale.voxel_size_zyx_nm)
    start = zyx(n // f for n, f in zip(scale.box.start, factors, strict=True))
    stop = divide_up(scale.box.stop, factors)
    z, y, x = (side * f for side, f in zip(scale.voxel_size_zyx_nm, factors, strict=True))
    return Scale(Box(start, stop), (z, y, x), factors)
