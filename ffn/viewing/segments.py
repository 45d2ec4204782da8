"""Sizes, bounding boxes, seeds, mean POM and matching bodies of all segments of a layer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ffn.contingency import ContingencyTable, count_pairs, find_runs, largest_parts, merge_tables
from ffn.geometry import Box
from ffn.io.volume import Read

MAX_PENDING = 2**22  # rows that wait before they are merged: 256 MiB
POM_STEPS = 254  # of probabilities stored as 1 … 255; 0 was never segmented


@dataclass(frozen=True)
class Segments:
    """Sizes and bounding boxes of segments, by ascending id.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Without 0.
    voxels : int64 ndarray of shape (N,)
        Number of voxels.
    start_zyx, stop_zyx : int64 ndarray of shape (N, 3)
        Bounding box, full-volume voxels.
    """

    ids: np.ndarray
    voxels: np.ndarray
    start_zyx: np.ndarray
    stop_zyx: np.ndarray

    @property
    def sizes(self) -> dict[int, int]:
        """Number of voxels by id."""
        return dict(zip(self.ids.tolist(), self.voxels.tolist(), strict=True))

    def box(self, segment_ids: list[int]) -> Box | None:
        """Return the common bounding box of some segments; None if none of them occurs."""
        rows = np.isin(self.ids, np.array(segment_ids, np.uint64))
        if not rows.any():
            return None
        start, stop = self.start_zyx[rows].min(0).tolist(), self.stop_zyx[rows].max(0).tolist()
        return Box(tuple(start), tuple(stop))


@dataclass(frozen=True)
class Matches:
    """The body that shares most voxels with each segment; rows as in `Segments`.

    Parameters
    ----------
    truth_ids : uint64 ndarray of shape (N,)
        Body; 0 if no voxel of the segment has one.
    shares : float64 ndarray of shape (N,)
        Share of the segment's labelled voxels that lie in this body.
    """

    truth_ids: np.ndarray
    shares: np.ndarray


@dataclass(frozen=True)
class PomSums:
    """Sums of the POM over segments, by ascending id.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Without 0.
    steps : int64 ndarray of shape (N,)
        Sum of the POM, in units of 1 / `POM_STEPS`. Whole numbers, so that the order of the blocks does not show.
    voxels : int64 ndarray of shape (N,)
        Number of voxels with a POM.
    """

    ids: np.ndarray
    steps: np.ndarray
    voxels: np.ndarray


Rows = TypeVar("Rows", bound=Segments | PomSums | ContingencyTable)


class SegmentCounter:
    """Count the segments of a volume, block by block in any order and from several threads.

    Memory grows with the number of segments, not with that of voxels.

    Parameters
    ----------
    truth : callable, optional
        Returns the bodies in a box; 0 is background.
    points_zyx : int ndarray of shape (K, 3), optional
        Voxels whose segments to look up, full-volume coordinates.
    pom : callable, optional
        Returns the probabilities in a box, uint8 as ``ffn segment`` writes them.
    """

    def __init__(
        self, truth: Read | None = None, points_zyx: np.ndarray | None = None, pom: Read | None = None
    ) -> None:
        self._truth, self._pom = truth, pom
        self._points = np.empty((0, 3), np.int64) if points_zyx is None else points_zyx
        self.ids_at_points = np.zeros(len(self._points), np.uint64)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._blocks = _Pending(merge_segments)
        self._pairs = _Pending(merge_tables)
        self._sums = _Pending(_merge_pom)

    def visit(self, block: Box, labels: np.ndarray) -> None:
        """Count one block.

        Parameters
        ----------
        block : Box
            Box of `labels`. Blocks must not overlap.
        labels : uint64 ndarray of shape (Z, Y, X)
            Segment ids.
        """
        found = block_segments(labels, block)
        pairs = None if self._truth is None else count_pairs(labels, self._load(self._truth, block)).foreground()
        sums = None if self._pom is None else block_pom(labels, self._load(self._pom, block))
        inside = block.holds(self._points)
        ids_there = labels[tuple((self._points[inside] - block.start).T)]
        with self._lock:
            self.ids_at_points[inside] = ids_there
            self._blocks.add(found)
            if pairs is not None:
                self._pairs.add(pairs)
            if sums is not None:
                self._sums.add(sums)

    def _load(self, read: Read, block: Box) -> np.ndarray:
        with self._reading:  # not every reader is thread-safe
            return read(block)

    def segments(self) -> Segments:
        """Return the segments of all blocks."""
        return self._blocks.merged()

    def mean_pom(self, segments: Segments) -> np.ndarray:
        """Return the mean POM of each segment, over its voxels that have one; 0 if none has."""
        sums, means = self._sums.merged(), np.zeros(len(segments.ids))
        known = sums.voxels > 0
        means[np.searchsorted(segments.ids, sums.ids[known])] = sums.steps[known] / (POM_STEPS * sums.voxels[known])
        return means

    def matches(self, segments: Segments) -> Matches:
        """Return the best matching body of each segment."""
        table = self._pairs.merged()
        best = table.keep(largest_parts(table.a, table.b, table.voxels))
        row = np.searchsorted(segments.ids, table.a)
        labelled = np.bincount(row, table.voxels, len(segments.ids))
        truth_ids, shares = np.zeros(len(segments.ids), np.uint64), np.zeros(len(segments.ids))
        row = np.searchsorted(segments.ids, best.a)
        truth_ids[row], shares[row] = best.b, best.voxels / labelled[row]
        return Matches(truth_ids, shares)


class _Pending(Generic[Rows]):
    """Rows of blocks, which are merged when there are many of them."""

    def __init__(self, merge: Callable[[list[Rows]], Rows]) -> None:
        self._merge = merge
        self._parts: list[Rows] = []
        self._limit = MAX_PENDING

    def add(self, part: Rows) -> None:
        self._parts.append(part)
        if sum(len(one.voxels) for one in self._parts) > self._limit:
            self._parts = [self.merged()]
            # With a fixed limit, each block would sort all of more segments than that again.
            self._limit = max(MAX_PENDING, 2 * len(self._parts[0].voxels))

    def merged(self) -> Rows:
        return self._merge(self._parts)


def block_segments(labels: np.ndarray, block: Box) -> Segments:
    """Return sizes and bounding boxes of the segments of one block.

    Examples
    --------
    >>> found = block_segments(np.array([[[7, 7, 0, 3]]], np.uint64), Box((5, 0, 0), (6, 1, 4)))
    >>> found.ids.tolist(), found.voxels.tolist(), found.start_zyx.tolist(), found.stop_zyx.tolist()
    ([3, 7], [1, 2], [[5, 0, 3], [5, 0, 0]], [[6, 1, 4], [6, 1, 2]])
    """
    first, lengths = find_runs(labels, within_rows=True)
    start = np.stack(np.unravel_index(first, labels.shape), axis=1) + block.start
    stop = start + 1
    stop[:, 2] = start[:, 2] + lengths
    ids = labels.ravel()[first].astype(np.uint64)
    inside = ids > 0
    return _grouped(Segments(ids[inside], lengths[inside], start[inside], stop[inside]))


def block_pom(labels: np.ndarray, probability: np.ndarray) -> PomSums:
    """Return the sums of the POM over the segments of one block.

    Examples
    --------
    >>> sums = block_pom(np.array([[[7, 7, 7, 0]]], np.uint64), np.array([[[255, 1, 0, 255]]], np.uint8))
    >>> sums.ids.tolist(), sums.steps.tolist(), sums.voxels.tolist()
    ([7], [254], [2])
    """
    first, _ = find_runs(labels)
    voxels = np.add.reduceat(probability.ravel() > 0, first, dtype=np.int64)
    steps = np.add.reduceat(probability.ravel(), first, dtype=np.int64) - voxels
    ids = labels.ravel()[first].astype(np.uint64)
    return _merge_pom([PomSums(ids[ids > 0], steps[ids > 0], voxels[ids > 0])])


def merge_segments(parts: list[Segments]) -> Segments:
    """Combine the segments of disjoint blocks."""
    empty = np.empty((0, 3), np.int64)
    nothing = Segments(np.empty(0, np.uint64), np.empty(0, np.int64), empty, empty)
    columns = [[getattr(part, name) for part in [nothing, *parts]] for name in Segments.__dataclass_fields__]
    return _grouped(Segments(*map(np.concatenate, columns)))


def number_segments(labels: np.ndarray, wanted: np.ndarray, border: int = 0) -> np.ndarray:
    """Replace each wanted id by its index in `wanted`, counted from 1, and all other ids by 0.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Segment ids.
    wanted : uint64 ndarray of shape (N,)
        Ids in ascending order.
    border : int
        Voxels of 0 to add on every side.

    Returns
    -------
    uint32 ndarray of shape (Z + 2 border, Y + 2 border, X + 2 border)
        Needs half the memory of `labels` in the libraries that process it.
    """
    numbers = np.zeros(np.add(labels.shape, 2 * border), np.uint32)
    inside = tuple(slice(border, border + n) for n in labels.shape)
    if len(wanted):
        for section, target in zip(labels, numbers[inside], strict=True):  # one section at a time saves memory
            place = np.searchsorted(wanted, section).clip(max=len(wanted) - 1)
            target[:] = np.where(wanted[place] == section, place + 1, 0)
    return numbers


def _merge_pom(parts: list[PomSums]) -> PomSums:
    nothing = PomSums(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    columns = [[getattr(part, name) for part in [nothing, *parts]] for name in PomSums.__dataclass_fields__]
    ids, steps, voxels = map(np.concatenate, columns)
    order = np.argsort(ids, kind="stable")
    unique, first = np.unique(ids[order], return_index=True)
    if not len(unique):
        return PomSums(ids, steps, voxels)
    return PomSums(unique, np.add.reduceat(steps[order], first), np.add.reduceat(voxels[order], first))


def _grouped(rows: Segments) -> Segments:
    """Combine rows with the same id."""
    order = np.argsort(rows.ids, kind="stable")
    ids, first = np.unique(rows.ids[order], return_index=True)
    if not len(ids):
        return rows
    return Segments(
        ids,
        np.add.reduceat(rows.voxels[order], first),
        np.minimum.reduceat(rows.start_zyx[order], first, axis=0),
        np.maximum.reduceat(rows.stop_zyx[order], first, axis=0),
    )
