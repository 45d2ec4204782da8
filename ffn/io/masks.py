"""Masks, and other volumes of any voxel size at the voxels of a box: which are left out, which object is nearest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, piece_shape, zyx
from ffn.io.coarser import READ_BYTES
from ffn.io.open import identity, open_truth, open_volume
from ffn.io.volume import IGNORED, Derived, Volume, with_ignored

ROUNDING = 1e-4  # voxels: a quotient of voxel sizes is seldom exact

Spans = list[tuple[np.ndarray, np.ndarray]]  # on each axis, the first and the last voxel for each of those of a box


class Masks:
    """The masks of one volume, opened."""

    def __init__(self, masks: Sequence[tuple[Mask, Volume | None]], voxel_size_zyx_nm: VoxelSize | None) -> None:
        self._masks = masks
        self._voxel_size = voxel_size_zyx_nm

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._masks)

    def read(self, box: Box) -> np.ndarray:
        """Return which voxels of `box` are masked by any of the masks, bool of ``box.shape``."""
        masked = np.zeros(box.shape, bool)
        for mask, volume in self._masks:
            masked |= _masked(mask, volume, box, self._voxel_size)
        return masked

    def read_around(self, box: Box) -> np.ndarray:
        """Return the same of a box that reaches beyond the masks, where all voxels count as masked."""
        masked, part = np.ones(box.shape, bool), self.covered(box)
        masked[part.slices(box.start)] = self.read(part)
        return masked

    def covered(self, box: Box) -> Box:
        """Return the part of `box` that all masks cover."""
        for _, volume in self._masks:
            if volume is not None:
                box = covered(volume, box, self._voxel_size)
        return box

    def require(self, box: Box) -> None:
        """Check that all masks cover `box`."""
        for _, volume in self._masks:
            if volume is not None:
                require_cover(volume, box, self._voxel_size)


NO_MASKS = Masks([], None)


def require_labels_in(spec: str, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Check that a volume of any resolution holds labels, and that some of it lies in a box."""
    with open_truth(spec) as labels:
        if not reaches(labels, box, voxel_size_zyx_nm):
            raise VolumeError(f"{spec} covers {labels.box}, expected some of {box}. Correct its offset or voxel size")


@contextlib.contextmanager
def open_masks(masks: Sequence[Mask], voxel_size_zyx_nm: VoxelSize | None) -> Iterator[Masks]:
    """Open the masks of a volume for the length of a ``with`` block; see `Masks`."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_volume(mask.path)) if mask.path else None for mask in masks]
        yield Masks(list(zip(masks, opened, strict=True)), voxel_size_zyx_nm)


class MaskedTruth(Derived):
    """Labels in which masked and ignored voxels are 0."""

    def __init__(self, labels: Volume, masks: Masks) -> None:
        super().__init__(with_ignored(labels, 0))
        self._marked = with_ignored(labels)
        self.masks = masks
        self.known = masks.covered(self.box)

    def _read(self, box: Box) -> np.ndarray:
        voxels = self.source.read(box)
        return np.where(self.masks.read(box), voxels.dtype.type(0), voxels) if self.masks else voxels

    def read_marked(self, box: Box) -> np.ndarray:
        """Return the labels of `box` with `IGNORED` in masked and ignored voxels, uint64."""
        voxels = self._marked.read(box).astype(np.uint64)
        return np.where(self.masks.read(box), IGNORED, voxels) if self.masks else voxels


@contextlib.contextmanager
def open_masked_truth(spec: str, masks: Sequence[Mask]) -> Iterator[MaskedTruth]:
    """Open labels for scores, as `ffn.io.open.open_truth`, without those of masked voxels."""
    with open_volume(spec) as labels, open_masks(masks, labels.voxel_size_zyx_nm) as opened:
        yield MaskedTruth(labels, opened)


def identities(specs: Mapping[str, str], masks: Sequence[Mask] = ()) -> dict[str, str]:
    """Return texts that change with the content of volumes and masks, for `ffn.provenance.fingerprint`."""
    each = [f"{mask} {identity(mask.path)}" if mask.path else str(mask) for mask in masks]
    return {name: identity(spec) for name, spec in specs.items()} | ({"masks": " ".join(each)} if each else {})


def mask_inputs(masks: Sequence[Mask]) -> dict[str, str]:
    """Return the masks for the provenance; nothing if there are none."""
    return {"masks": " ".join(map(str, masks))} if masks else {}


def _masked(mask: Mask, volume: Volume | None, box: Box, voxel_size: VoxelSize | None) -> np.ndarray:
    """Return which voxels of `box` one mask leaves out."""
    if volume is None:
        chosen = np.ones(box.shape, bool)
    else:
        over = np.logical_and if mask.invert else np.logical_or  # so that a voxel that is masked in part is masked
        chosen = read_test(volume, box, voxel_size, partial(_chosen, mask), over)
    if mask.box is not None:
        inside = np.zeros(box.shape, bool)
        part = Box.parse(mask.box).intersect(box)
        if not part.is_empty:
            inside[part.slices(box.start)] = True
        chosen &= inside
    return ~chosen if mask.invert else chosen


def _chosen(mask: Mask, voxels: np.ndarray) -> np.ndarray:
    """Return where voxels have a value that the mask names; one that names none means all but 0."""
    if mask.values:
        return np.isin(voxels, _values_for(voxels.dtype, mask.values))
    if mask.range is not None:
        return (voxels >= mask.range[0]) & (voxels <= mask.range[1])
    return voxels != 0


def _values_for(dtype: np.dtype, values: Sequence[int]) -> np.ndarray:
    """Return the values that voxels can have; integers as their type, as NumPy compares mixed ones as float64."""
    if dtype.kind not in "ui":
        return np.array(values)
    limits = np.iinfo(dtype)
    return np.array([value for value in values if limits.min <= value <= limits.max], dtype)


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
