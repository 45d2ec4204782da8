"""Read a volume of another voxel size at the voxels of a box."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, piece_shape, zyx
from ffn.io.coarser import READ_BYTES
from ffn.io.volume import Volume

ROUNDING = 1e-4  # voxels: a quotient of voxel sizes is seldom exact


def read_nearest(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None, outside: int) -> np.ndarray:
    """Return the voxels of a volume of any voxel size that are nearest to those of a box."""
    ratios = _ratios(volume, voxel_size_zyx_nm)
    if ratios == (1.0, 1.0, 1.0) and box.intersect(volume.box) == box:
        return volume.read(box)
    found = np.full(box.shape, outside, volume.dtype)
    for piece in box.blocks(_piece(volume, box, ratios)):
        indices = _indices(piece, ratios)
        part = _hull(indices, indices).intersect(volume.box)
        if not part.is_empty:
            inside = [(i >= a) & (i < b) for i, a, b in zip(indices, part.start, part.stop, strict=True)]
            places = [i[known] - a for i, known, a in zip(indices, inside, part.start, strict=True)]
            found[piece.slices(box.start)][np.ix_(*inside)] = volume.read(part)[np.ix_(*places)]
    return found


def reaches(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> bool:
    """Whether `read_nearest` finds any voxel of `volume` in `box`."""
    indices = _indices(box, _ratios(volume, voxel_size_zyx_nm))
    return not _hull(indices, indices).intersect(volume.box).is_empty


def read_test(
    volume: Volume,
    box: Box,
    voxel_size_zyx_nm: VoxelSize | None,
    test: Callable[[np.ndarray], np.ndarray],
    over: np.ufunc = np.logical_or,
) -> np.ndarray:
    """Return for the voxels of a box whether any voxel of a volume that lies in one, in part at least, passes a test.

    A volume with larger voxels is read at the one that the centre of a voxel lies in.
    """
    require_cover(volume, box, voxel_size_zyx_nm)
    ratios = _ratios(volume, voxel_size_zyx_nm)
    found = np.empty(box.shape, bool)
    for part in box.blocks(_piece(volume, box, ratios)):
        spans = _spans(volume, part, ratios)
        around = _hull(spans.first, spans.last)
        passed = test(volume.read(around))
        if around != part:
            for axis, (first, last) in enumerate(zip(*spans, strict=True)):
                passed = _reduced(passed, axis, first - around.start[axis], last - around.start[axis], over)
        found[part.slices(box.start)] = passed
    return found


def require_cover(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Check that each voxel of a box has a voxel of a volume in it, or lies in one; see `read_test`."""
    if covered(volume, box, voxel_size_zyx_nm) != box:
        part = _hull(*(_indices(box, _ratios(volume, voxel_size_zyx_nm)),) * 2)
        own = "" if part == box else f", which is {part} in its voxels of {volume.voxel_size_zyx_nm} nm"
        raise VolumeError(
            f"{volume.name}: the mask covers {volume.box}, expected all of {box}{own}. "
            "Take a smaller box, or extend the mask"
        )


def covered(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> Box:
    """Return the part of a box whose voxels each have a voxel of a volume in them, or lie in one; see `read_test`."""
    spans = _spans(volume, box, _ratios(volume, voxel_size_zyx_nm))
    numbers = [np.flatnonzero(first <= last) for first, last in zip(*spans, strict=True)]
    if not all(map(len, numbers)):
        return Box(box.start, box.start)
    return _hull(numbers, numbers).shift(box.start)


class _Spans(NamedTuple):
    """First and last voxel along each axis for those of a box."""

    first: list[np.ndarray]
    last: list[np.ndarray]


def _spans(volume: Volume, box: Box, ratios: VoxelSize) -> _Spans:
    """Return which voxels of a volume lie in those of a box, or which one the centre lies in, if it has larger ones."""
    firsts, lasts = [], []
    axes = zip(_indices(box, ratios), ratios, box.start, box.stop, volume.box.start, volume.box.stop, strict=True)
    for nearest, ratio, start, stop, lowest, end in axes:
        first = last = nearest
        if ratio > 1:
            places = np.arange(start, stop)
            first = np.floor(places * ratio + ROUNDING).astype(np.int64)
            last = np.ceil((places + 1) * ratio - ROUNDING).astype(np.int64) - 1
        firsts.append(np.maximum(first, lowest))
        lasts.append(np.minimum(last, end - 1))
    return _Spans(firsts, lasts)


def _piece(volume: Volume, box: Box, ratios: VoxelSize) -> ZYX:
    """Return the parts in which to read a box: units that the volume decodes as a whole, or up to `READ_BYTES`."""
    smaller = [max(1.0, ratio) for ratio in ratios]
    chunk = volume.chunk_zyx or (1, 1, 1)
    least = zyx(max(1, n // ratio) for n, ratio in zip(chunk, smaller, strict=True))
    return piece_shape(least, box.shape, READ_BYTES // (math.ceil(math.prod(smaller)) * volume.dtype.itemsize))


def _reduced(passed: np.ndarray, axis: int, first: np.ndarray, last: np.ndarray, over: np.ufunc) -> np.ndarray:
    """Combine the voxels between `first` and `last` along an axis."""
    combined = passed.take(first, axis)
    for step in range(1, int((last - first).max()) + 1):
        combined = over(combined, passed.take(np.minimum(first + step, last), axis))
    return combined


def _hull(first: list[np.ndarray], last: list[np.ndarray]) -> Box:
    return Box(zyx(i[0] for i in first), zyx(i[-1] + 1 for i in last))


def _ratios(volume: Volume, voxel_size: VoxelSize | None) -> VoxelSize:
    """Return how many voxels of a volume are as long as one of the other size."""
    own = volume.voxel_size_zyx_nm
    if voxel_size is None or own is None or np.allclose(voxel_size, own, rtol=1e-4):
        return 1.0, 1.0, 1.0
    z, y, x = (a / b for a, b in zip(voxel_size, own, strict=True))
    return z, y, x


def _indices(box: Box, ratios: VoxelSize) -> list[np.ndarray]:
    """Return for each axis the place of the nearest voxel: the one that the centre of a voxel lies in."""
    ranges = (np.arange(a, b) + 0.5 for a, b in zip(box.start, box.stop, strict=True))
    return [np.floor(centres * ratio).astype(np.int64) for centres, ratio in zip(ranges, ratios, strict=True)]
