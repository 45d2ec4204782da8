"""Masks: which voxels of a box are left out of everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize
from ffn.io.nearest import covered, reaches, read_test, require_cover
from ffn.io.open import identity, open_truth, open_volume
from ffn.io.volume import IGNORED, Derived, Volume, with_ignored


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
