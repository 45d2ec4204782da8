"""Sizes and bounding boxes of all segments of a layer, counted block by block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ffn.contingency import find_runs
from ffn.geometry import Box, zyx

MIN_PENDING = 2**20  # segments that wait before they are merged: with fewer, each block would sort all again


@dataclass(frozen=True)
class Segments:
    """Facts about segments, by ascending id; int64 but for the ids."""

    ids: np.ndarray  # uint64, without 0
    voxels: np.ndarray
    start_zyx: np.ndarray  # of the bounding box, full-volume voxels, of shape (N, 3)
    stop_zyx: np.ndarray

    def box(self, segment_ids: list[int]) -> Box | None:
        """Return the common bounding box of some segments; None if none of them occurs."""
        rows = np.isin(self.ids, np.array(segment_ids, np.uint64))
        return Box(zyx(self.start_zyx[rows].min(0)), zyx(self.stop_zyx[rows].max(0))) if rows.any() else None


def count_segments(block: Box, labels: np.ndarray) -> Segments:
    """Count the segments of a block of labels.

    >>> found = count_segments(Box((5, 0, 0), (6, 1, 4)), np.array([[[7, 7, 0, 3]]], np.uint64))
    >>> found.ids.tolist(), found.voxels.tolist(), found.start_zyx.tolist(), found.stop_zyx.tolist()
    ([3, 7], [1, 2], [[5, 0, 3], [5, 0, 0]], [[6, 1, 4], [6, 1, 2]])
    """
    first, lengths = find_runs(labels, within_rows=True)
    start = np.stack(np.unravel_index(first, labels.shape), axis=1) + block.start
    stop = start + 1
    stop[:, 2] = start[:, 2] + lengths
    ids = labels.ravel()[first].astype(np.uint64)
    return _merged([Segments(*(column[ids > 0] for column in (ids, lengths, start, stop)))])


def merge_segments(parts: Iterable[Segments]) -> Segments:
    """Combine the segments of disjoint blocks. Memory grows with the number of segments, not with that of blocks."""
    none = count_segments(Box.from_shape((1, 1, 1)), np.zeros((1, 1, 1), np.uint64))
    pending, num_pending = [none], 0
    for part in parts:
        if len(part.ids):
            pending.append(part)
            num_pending += len(part.ids)
        if num_pending > max(MIN_PENDING, len(pending[0].ids)):
            pending, num_pending = [_merged(pending)], 0
    return _merged(pending)


def _merged(parts: list[Segments]) -> Segments:
    """Combine rows with the same id."""
    ids, *columns = (np.concatenate([getattr(part, name) for part in parts]) for name in Segments.__dataclass_fields__)
    order = np.argsort(ids, kind="stable")
    known, first = np.unique(ids[order], return_index=True)
    if not len(ids):
        return parts[0]
    voxels, start, stop = (column[order] for column in columns)
    reduced = np.minimum.reduceat(start, first, axis=0), np.maximum.reduceat(stop, first, axis=0)
    return Segments(known, np.add.reduceat(voxels, first), *reduced)


def number_segments(labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Replace each of the `wanted` ids (ascending) by its place among them, from 1, and all other ids by 0.

    The result, uint32, needs half the memory of `labels` in the libraries that process it.
    """
    numbers = np.zeros(labels.shape, np.uint32)
    if len(wanted):
        for section, target in zip(labels, numbers, strict=True):  # one section at a time saves memory
            row = np.searchsorted(wanted, section).clip(max=len(wanted) - 1)
            target[:] = np.where(wanted[row] == section, row + 1, 0)
    return numbers
