"""Masks: which voxels of a box are left out of everything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.open import open_volume
from ffn.io.volume import Truth, Volume


class Masks:
    """The masks of one volume, opened.

    Parameters
    ----------
    masks : sequence of (Mask, Volume or None)
        Each with its volume, if it names one.
    voxel_size_zyx_nm : tuple of float or None
        Of the volume that is masked. A mask with other voxels is read at the nearest of them; with None it is taken to
        have the same.
    """

    def __init__(self, masks: Sequence[tuple[Mask, Volume | None]], voxel_size_zyx_nm: VoxelSize | None) -> None:
        self._masks = masks
        self._voxel_size = voxel_size_zyx_nm

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._masks)

    def read(self, box: Box) -> np.ndarray:
        """Return which voxels of `box` are masked by any of the masks, bool of ``box.shape``.

        Raises
        ------
        VolumeError
            If a mask does not cover `box`.
        """
        masked = np.zeros(box.shape, bool)
        for mask, volume in self._masks:
            masked |= _masked(mask, volume, box, self._voxel_size)
        return masked

    def require(self, box: Box) -> None:
        """Check that all masks cover `box`.

        Raises
        ------
        VolumeError
            If one does not.
        """
        for _, volume in self._masks:
            if volume is not None:
                _box_in(volume, box, self._voxel_size)


@contextlib.contextmanager
def open_masks(masks: Sequence[Mask], voxel_size_zyx_nm: VoxelSize | None) -> Iterator[Masks]:
    """Open the masks of a volume for the length of a ``with`` block; see `Masks`.

    Raises
    ------
    VolumeError
        If a mask cannot be read.
    """
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_volume(mask.path)) if mask.path else None for mask in masks]
        yield Masks(list(zip(masks, opened, strict=True)), voxel_size_zyx_nm)


class MaskedTruth(Truth):
    """Labels in which masked and ignored voxels are 0; see `Truth`."""

    def __init__(self, labels: Volume, masks: Masks) -> None:
        super().__init__(labels)
        self._masks = masks

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the labels of `box` (default: all)."""
        box = box or self.box
        voxels = super().read(box)
        return np.where(self._masks.read(box), voxels.dtype.type(0), voxels) if self._masks else voxels


@contextlib.contextmanager
def open_masked_truth(spec: str, masks: Sequence[Mask]) -> Iterator[Volume]:
    """Open labels for scores, as `ffn.io.open.open_truth`, without those of masked voxels."""
    with open_volume(spec) as labels, open_masks(masks, labels.voxel_size_zyx_nm) as opened:
        yield MaskedTruth(labels, opened)


def _masked(mask: Mask, volume: Volume | None, box: Box, voxel_size: VoxelSize | None) -> np.ndarray:
    """Return which voxels of `box` one mask leaves out."""
    if volume is None:
        chosen = np.ones(box.shape, bool)
    else:
        chosen = _chosen(mask, _nearest(volume, box, voxel_size))
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
        return np.isin(voxels, mask.values)
    if mask.range is not None:
        return (voxels >= mask.range[0]) & (voxels <= mask.range[1])
    return voxels != 0


def _nearest(volume: Volume, box: Box, voxel_size: VoxelSize | None) -> np.ndarray:
    """Return the voxels of a volume of any voxel size that are nearest to those of `box`."""
    part = _box_in(volume, box, voxel_size)
    voxels, indices = volume.read(part), _indices(volume, box, voxel_size)
    return voxels if part == box else voxels[np.ix_(*(i - a for i, a in zip(indices, part.start, strict=True)))]


def _box_in(volume: Volume, box: Box, voxel_size: VoxelSize | None) -> Box:
    """Return the box of the voxels that `_nearest` takes, in those of `volume`; refuse one that it does not cover."""
    indices = _indices(volume, box, voxel_size)
    part = Box(zyx(i[0] for i in indices), zyx(i[-1] + 1 for i in indices))
    if not volume.box.contains(part):
        own = "" if part == box else f", which is {part} in its voxels of {volume.voxel_size_zyx_nm} nm"
        raise VolumeError(
            f"{volume.name}: the mask covers {volume.box}, expected all of {box}{own}. "
            "Take a smaller box, or extend the mask"
        )
    return part


def _indices(volume: Volume, box: Box, voxel_size: VoxelSize | None) -> list[np.ndarray]:
    """Return for each axis the place of the nearest voxel in `volume`: the one that the centre of a voxel lies in."""
    own = volume.voxel_size_zyx_nm
    ratios = (1.0, 1.0, 1.0)
    if voxel_size is not None and own is not None and not np.allclose(voxel_size, own, rtol=1e-4):
        ratios = tuple(a / b for a, b in zip(voxel_size, own, strict=True))  # type: ignore[assignment]
    ranges = (np.arange(a, b) + 0.5 for a, b in zip(box.start, box.stop, strict=True))
    return [np.floor(centres * ratio).astype(np.int64) for centres, ratio in zip(ranges, ratios, strict=True)]
