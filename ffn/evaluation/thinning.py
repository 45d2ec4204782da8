"""Read labels at a coarser spacing, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Volume
from ffn.progress import track

BLOCK = 256  # voxels read at a time along each axis, rounded down to whole steps


def step_for(spacing_nm: float, voxel_size_zyx_nm: VoxelSize, shape_zyx: ZYX) -> ZYX:
    """Return how many voxels along each axis fit into `spacing_nm`, at least 1 and at most all of a thin stack's."""
    sides = zip(voxel_size_zyx_nm, shape_zyx, strict=True)
    return zyx(min(n, max(1, math.floor(spacing_nm / side + 1e-9))) for side, n in sides)


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
    blocks = list(box.blocks(zyx(s * max(1, BLOCK // s) for s in step_zyx)))
    parts = (thin(volume, block, box, step_zyx) for block in track(blocks, len(blocks), "read labels"))
    return assemble(parts, blocks, box, step_zyx)


def thin(volume: Volume, block: Box, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read what a block of `box` has of the result of `read_thinned`."""
    inside = _thinned(block, box, step_zyx)
    first = [start + s // 2 + i * s for start, s, i in zip(box.start, step_zyx, inside.start, strict=True)]
    return volume.read(block)[
        tuple(slice(a - b, None, s) for a, b, s in zip(first, block.start, step_zyx, strict=True))
    ]


def assemble(parts: Iterable[np.ndarray], blocks: Sequence[Box], box: Box, step_zyx: ZYX) -> np.ndarray:
    """Return the result of `read_thinned` from that of `thin` for blocks that tile `box`."""
    thinned: np.ndarray | None = None
    for block, part in zip(blocks, parts, strict=True):
        if thinned is None:
            thinned = np.zeros(_thinned(box, box, step_zyx).shape, part.dtype)
        thinned[_thinned(block, box, step_zyx).slices()] = part
    assert thinned is not None, box
    return thinned


def _thinned(block: Box, box: Box, step_zyx: ZYX) -> Box:
    """Return where the voxels of a block are in the result."""

    def number(voxels: ZYX) -> ZYX:
        places = zip(voxels, box.start, step_zyx, strict=True)
        return zyx(-((start + s // 2 - voxel) // s) for voxel, start, s in places)

    return Box(number(block.start), number(block.stop))
