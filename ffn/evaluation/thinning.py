"""Labels read at a coarser spacing, block by block: one voxel out of every few."""

from __future__ import annotations

import math

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Volume
from ffn.progress import track

BLOCK = 256  # voxels read at a time on each axis, rounded to whole steps


def step_for(spacing_nm: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return how many voxels on each axis are at most `spacing_nm` long, at least 1."""
    return zyx(max(1, math.floor(spacing_nm / side + 1e-9)) for side in voxel_size_zyx_nm)


def read_thinned(volume: Volume, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read the voxel in the middle of every `step_zyx` voxels.

    Parameters
    ----------
    volume : Volume
        Labels.
    box : Box
        What to read.
    step_zyx : tuple of int
        Voxels that one of the result stands for.

    Returns
    -------
    integer ndarray
        Voxel i of an axis is voxel ``start + step // 2 + i * step`` of the volume.
    """
    shape = [-(-(n - s // 2) // s) for n, s in zip(box.shape, step_zyx, strict=True)]
    thinned = np.zeros(shape, volume.dtype)
    blocks = list(box.blocks(zyx(s * max(1, BLOCK // s) for s in step_zyx)))
    for block in track(blocks, len(blocks), "read labels"):
        part = volume.read(block)[tuple(slice(s // 2, None, s) for s in step_zyx)]
        first = [(a - b) // s for a, b, s in zip(block.start, box.start, step_zyx, strict=True)]
        thinned[tuple(slice(a, a + n) for a, n in zip(first, part.shape, strict=True))] = part
    return thinned
