"""Read labels at a coarser spacing, block by block."""

from __future__ import annotations

import math

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Volume
from ffn.progress import track

BLOCK = 256  # voxels read at a time along each axis, rounded down to whole steps


def step_for(spacing_nm: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return how many voxels along each axis fit into `spacing_nm`, at least 1."""
    return zyx(max(1, math.floor(spacing_nm / side + 1e-9)) for side in voxel_size_zyx_nm)


def read_thinned(volume: Volume, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read one voxel of every `step_zyx` voxels, the middle one.

    Parameters
    ----------
    volume : Volume
        Labels.
    box : Box
        What to read.
    step_zyx : tuple of int
        Voxels of the volume per voxel of the result.

    Returns
    -------
    integer ndarray
        Along each axis, voxel i is voxel ``start + step // 2 + i * step`` of the volume.
    """
    shape = [-(-(n - s // 2) // s) for n, s in zip(box.shape, step_zyx, strict=True)]
    thinned = np.zeros(shape, volume.dtype)
    blocks = list(box.blocks(zyx(s * max(1, BLOCK // s) for s in step_zyx)))
    for block in track(blocks, len(blocks), "read labels"):
        part = volume.read(block)[tuple(slice(s // 2, None, s) for s in step_zyx)]
        first = [(a - b) // s for a, b, s in zip(block.start, box.start, step_zyx, strict=True)]
        thinned[tuple(slice(a, a + n) for a, n in zip(first, part.shape, strict=True))] = part
    return thinned
