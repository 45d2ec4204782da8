"""Masks, and other volumes of any voxel size at the voxels of a box: which are left out, which object is nearest.

The common part of stages comes last: their options, the volumes that they read, and all that their results depend on.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ffn.config import Mask, Section
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, piece_shape, zyx
from ffn.io.blocks import BlockWork, Job, add_job_options, job_of, map_blocks
from ffn.io.coarser import READ_BYTES
from ffn.io.open import identity, open_segmentation, open_truth, open_volume
from ffn.io.volume import IGNORED, NO_SIZE, Derived, Placement, Volume, require_other_file, voxel_size_of, with_ignored
from ffn.options import add_masks_option, add_options, add_store_option, add_volume_option, from_arguments, masks_from
from ffn.provenance import fingerprint, provenance

C = TypeVar("C", bound=Section)

ROUNDING = 1e-4  # voxels: a quotient of voxel sizes is seldom exact


class AtSize(Derived):
    """A volume at voxels of another size, each of which is the one that its centre lies in."""

    def __init__(self, source: Volume, voxel_size_zyx_nm: VoxelSize | None) -> None:
        super().__init__(source)
        own = source.voxel_size_zyx_nm
        is_known = own not in (None, NO_SIZE) and voxel_size_zyx_nm not in (None, NO_SIZE)
        is_other = is_known and not np.allclose(voxel_size_zyx_nm, own, rtol=1e-4)  # type: ignore[arg-type]
        self._ratios = np.divide(voxel_size_zyx_nm, own) if is_other else np.ones(3)  # type: ignore[arg-type]
        corners = (np.divide(corner, self._ratios) for corner in (source.box.start, source.box.stop))
        self.box = Box(*(zyx(np.ceil(corner - 0.5 - ROUNDING)) for corner in corners))

    def _read(self, box: Box) -> np.ndarray:
        if (self._ratios == 1).all():
            return self.source.read(box)
        found, smaller = np.empty(box.shape, self.dtype), np.maximum(self._ratios, 1)
        least = zyx(np.maximum(np.floor_divide(self.chunk_zyx or (1, 1, 1), smaller), 1))
        most = READ_BYTES // (math.ceil(smaller.prod()) * self.dtype.itemsize)
        for part in box.blocks(piece_shape(least, box.shape, most)):
            axes = zip(part.start, part.stop, self._ratios, self.source.box.start, self.source.box.stop, strict=True)
            places = [
                np.clip(np.floor((np.arange(start, stop) + 0.5) * ratio).astype(np.int64), first, end - 1)
                for start, stop, ratio, first, end in axes
            ]
            around = Box(zyx(i[0] for i in places), zyx(i[-1] + 1 for i in places))
            own = [i - start for i, start in zip(places, around.start, strict=True)]
            found[part.slices(box.start)] = self.source.read(around)[np.ix_(*own)]
        return found


class Masks:
    """The masks of one volume, opened."""

    def __init__(self, masks: Sequence[tuple[Mask, Volume | None]]) -> None:
        self._masks = masks
        self._volumes = [volume for _, volume in masks if volume is not None]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._masks)

    def read(self, box: Box) -> np.ndarray:
        """Return which voxels of `box` are masked by any of the masks, bool of ``box.shape``."""
        self.require(box)
        masked = np.zeros(box.shape, bool)
        for mask, volume in self._masks:
            masked |= _masked(mask, volume, box)
        return masked

    def read_around(self, box: Box) -> np.ndarray:
        """Return the same of a box that reaches beyond the masks, where all voxels count as masked."""
        masked, part = np.ones(box.shape, bool), self.covered(box)
        if not part.is_empty:
            masked[part.slices(box.start)] = self.read(part)
        return masked

    def covered(self, box: Box) -> Box:
        """Return the part of `box` that all masks cover."""
        for volume in self._volumes:
            box = box.intersect(volume.box)
        return box

    def require(self, box: Box) -> None:
        """Check that all masks cover `box`."""
        for volume in self._volumes:
            if not volume.box.contains(box):
                found = f"{volume.name}: the mask covers {volume.box}, in voxels of the image, expected all of {box}"
                raise VolumeError(f"{found}. Take a smaller box, or extend the mask")


NO_MASKS = Masks([])


def require_labels_in(spec: str, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Check that a volume of any resolution holds labels, and that some of it lies in a box."""
    with open_truth(spec) as labels:
        if AtSize(labels, voxel_size_zyx_nm).box.intersect(box).is_empty:
            raise VolumeError(f"{spec} covers {labels.box}, expected some of {box}. Correct its offset or voxel size")


@contextlib.contextmanager
def open_masks(masks: Sequence[Mask], voxel_size_zyx_nm: VoxelSize | None) -> Iterator[Masks]:
    """Open the masks of a volume for the length of a ``with`` block; see `Masks`."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_volume(mask.path)) if mask.path else None for mask in masks]
        yield Masks([(m, v and AtSize(v, voxel_size_zyx_nm)) for m, v in zip(masks, opened, strict=True)])


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


def _masked(mask: Mask, volume: Volume | None, box: Box) -> np.ndarray:
    """Return which voxels of `box` one mask leaves out."""
    chosen = np.ones(box.shape, bool) if volume is None else _chosen(mask, volume.read(box))
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
    volume = AtSize(volume, voxel_size_zyx_nm)
    found, part = np.full(box.shape, outside, volume.dtype), box.intersect(volume.box)
    if not part.is_empty:
        found[part.slices(box.start)] = volume.read(part)
    return found


def add_stage_options(
    parser: argparse.ArgumentParser,
    config: type[Section],
    volumes: Mapping[str, str],
    out: str,
    steps: Sequence[str] = (),
) -> None:
    """Give `parser` the options of a stage that writes a volume: inputs by name, ``--out``, masks, jobs and section."""
    for name, text in volumes.items():
        add_volume_option(parser, name, text)
    add_store_option(parser, "--out", out)
    add_masks_option(parser)
    add_job_options(parser, steps)
    add_options(parser, config)


def stage_options(arguments: argparse.Namespace, config: type[C]) -> tuple[C, tuple[Mask, ...], Job]:
    """Return section, masks and job of the options of `add_stage_options`."""
    return from_arguments(config, arguments), masks_from(arguments), job_of(arguments)


class Inputs(contextlib.ExitStack):
    """The inputs of a stage by name: opened when they are asked for, closed at the end of the ``with`` block.

    Raises
    ------
    VolumeError
        If `out` is one of them.
    """

    def __init__(self, stage: str, config: Section, out: str, masks: tuple[Mask, ...] = (), **specs: str) -> None:
        super().__init__()
        require_other_file(out, *specs.values(), *(mask.path for mask in masks if mask.path))
        self._stage, self._config, self._out, self._masks, self._specs = stage, config, out, masks, specs

    def segmentation(self, name: str) -> Volume:
        """Open labels, in which negative ids are 0."""
        return self.enter_context(open_segmentation(self._specs[name]))

    def volume(self, name: str) -> Volume:
        """Open a volume."""
        return self.enter_context(open_volume(self._specs[name]))

    def masks(self, of: Volume) -> Masks:
        """Open the masks of a volume."""
        return self.enter_context(open_masks(self._masks, of.voxel_size_zyx_nm))

    def key(self, **more: object) -> dict[str, Any]:
        """Return all that the result depends on."""
        return fingerprint(self._stage, self._config, **identities(self._specs, self._masks), **more)

    def provenance(self, **more: object) -> dict[str, Any]:
        """Return the provenance that is recorded in the result."""
        return provenance(self._stage, self._config, **self._specs, **mask_inputs(self._masks), **more)

    def map(self, like: Volume, dtypes: Mapping[str, np.dtype | type], work: BlockWork, job: Job) -> None:
        """Write volumes in the place of another one, block by block, see `map_blocks`."""
        placement = Placement(like.box, voxel_size_of(like), self.provenance())
        map_blocks(self._out, dtypes, placement, work, self.key(), job)
