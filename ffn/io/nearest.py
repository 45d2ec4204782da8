"""Read a volume of another voxel size at the voxels of a box."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, piece_shape, zyx
from ffn.io.coarser import READ_BYTES
from ffn.io.volume import Volume

ROUNDING = 1e-4  # voxels: a quotient of voxel sizes is seldom exact

Spans = list[tuple[np.ndarray, np.ndarray]]  # on each axis, the first and the last voxel for each of those of a box


def read_nearest(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None, outside: int) -> np.ndarray:
    """Return the voxels of a volume of any voxel size that are nearest to those of a box."""
    ratios = _ratios(volume, voxel_size_zyx_nm)
    if ratios == (1.0, 1.0, 1.0) and volume.box.contains(box):
        return volume.read(box)
    found = np.full(box.shape, outside, volume.dtype)
    for piece in box.blocks(_piece(volume, box, ratios)):
        nearest = _nearest(piece, ratios)
        part = _hull(nearest).intersect(volume.box)
        if not part.is_empty:
            axes = list(zip((first for first, _ in nearest), part.start, part.stop, strict=True))
            inside = [(i >= start) & (i < stop) for i, start, stop in axes]
            places = [i[known] - start for (i, start, _), known in zip(axes, inside, strict=True)]
            found[piece.slices(box.start)][np.ix_(*inside)] = volume.read(part)[np.ix_(*places)]
    return found


def reaches(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> bool:
    """Whether `read_nearest` finds any voxel of `volume` in `box`."""
    return not _hull(_nearest(box, _ratios(volume, voxel_size_zyx_nm))).intersect(volume.box).is_empty


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
        around = _hull(spans)
        passed = test(volume.read(around))
        if around != part:
            for axis, (first, last) in enumerate(spans):
                passed = _reduced(passed, axis, first - around.start[axis], last - around.start[axis], over)
        found[part.slices(box.start)] = passed
    return found


def require_cover(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Check that each voxel of a box has a voxel of a volume in it, or lies in one; see `read_test`."""
    if covered(volume, box, voxel_size_zyx_nm) != box:
        part = _hull(_nearest(box, _ratios(volume, voxel_size_zyx_nm)))
        own = "" if part == box else f", which is {part} in its voxels of {volume.voxel_size_zyx_nm} nm"
        found = f"{volume.name}: the mask covers {volume.box}, expected all of {box}{own}"
        raise VolumeError(f"{found}. Take a smaller box, or extend the mask")


def covered(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> Box:
    """Return the part of a box whose voxels each have a voxel of a volume in them, or lie in one; see `read_test`."""
    spans = _spans(volume, box, _ratios(volume, voxel_size_zyx_nm))
    numbers = [np.flatnonzero(first <= last) for first, last in spans]
    if not all(map(len, numbers)):
        return Box(box.start, box.start)
    return _hull([(each, each) for each in numbers]).shift(box.start)


def _nearest(box: Box, ratios: VoxelSize) -> Spans:
    """Return the voxel that the centre of each voxel of a box lies in."""
    ranges = (np.arange(a, b) + 0.5 for a, b in zip(box.start, box.stop, strict=True))
    places = [np.floor(centres * ratio).astype(np.int64) for centres, ratio in zip(ranges, ratios, strict=True)]
    return [(place, place) for place in places]


def _spans(volume: Volume, box: Box, ratios: VoxelSize) -> Spans:
    """Return which voxels of a volume lie in those of a box, or which one the centre lies in, if it has larger ones."""
    spans = _nearest(box, ratios)
    for axis, ratio in enumerate(ratios):
        first, last = spans[axis]
        if ratio > 1:
            places = np.arange(box.start[axis], box.stop[axis])
            first = np.floor(places * ratio + ROUNDING).astype(np.int64)
            last = np.ceil((places + 1) * ratio - ROUNDING).astype(np.int64) - 1
        spans[axis] = np.maximum(first, volume.box.start[axis]), np.minimum(last, volume.box.stop[axis] - 1)
    return spans


def _hull(spans: Spans) -> Box:
    return Box(zyx(first[0] for first, _ in spans), zyx(last[-1] + 1 for _, last in spans))


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


def _ratios(volume: Volume, voxel_size: VoxelSize | None) -> VoxelSize:
    """Return how many voxels of a volume are as long as one of the other size."""
    own = volume.voxel_size_zyx_nm
    if voxel_size is None or own is None or np.allclose(voxel_size, own, rtol=1e-4):
        return 1.0, 1.0, 1.0
    z, y, x = (a / b for a, b in zip(voxel_size, own, strict=True))
    return z, y, x
