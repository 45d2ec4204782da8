"""Sizes, bounding boxes, seeds, mean POM and matching bodies of all segments of a layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ffn.contingency import ContingencyTable, count_pairs, find_runs, largest_parts, merge_tables
from ffn.geometry import Box
from ffn.io.block_log import Result
from ffn.io.volume import Read
from ffn.viewing.mips import one_at_a_time

MAX_PENDING = 2**22  # rows that wait before they are merged: at most 256 MiB
ROWS_PER_PART = 64  # that need the memory of a part without rows
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


@dataclass(frozen=True)
class PointIds:
    """Segments at given voxels.

    Parameters
    ----------
    numbers : int64 ndarray of shape (N,)
        Which of the voxels.
    ids : uint64 ndarray of shape (N,)
        Segment there; 0 for none.
    """

    numbers: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class Counts:
    """What is counted of the segments of a block, or of a volume.

    Parameters
    ----------
    segments : Segments
        Sizes and bounding boxes.
    pairs : ContingencyTable
        Voxels shared with bodies of the ground truth.
    pom : PomSums
        Sums of the POM.
    points : PointIds
        Segments at seeds.
    """

    segments: Segments
    pairs: ContingencyTable
    pom: PomSums
    points: PointIds

    @property
    def arrays(self) -> Result:
        """All columns, for a record."""
        return {f"{name}.{key}": column for name, rows in vars(self).items() for key, column in vars(rows).items()}

    @classmethod
    def of(cls, learnt: Result) -> Counts:
        """Return the counts in a record."""
        columns: dict[str, dict[str, np.ndarray]] = {}
        for name, column in learnt.items():
            columns.setdefault(name.partition(".")[0], {})[name.partition(".")[2]] = column
        kinds = (Segments, ContingencyTable, PomSums, PointIds)
        return cls(*(kind(**columns[name]) for name, kind in zip(cls.__dataclass_fields__, kinds, strict=True)))

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(len(next(iter(vars(rows).values()))) for rows in vars(self).values())

    def mean_pom(self) -> np.ndarray:
        """Return the mean POM of each segment, over its voxels that have one; 0 if none has."""
        sums, means = self.pom, np.zeros(len(self.segments.ids))
        known = sums.voxels > 0
        rows = np.searchsorted(self.segments.ids, sums.ids[known])
        means[rows] = sums.steps[known] / (POM_STEPS * sums.voxels[known])
        return means

    def matches(self) -> Matches:
        """Return the best matching body of each segment."""
        table, ids = self.pairs, self.segments.ids
        best = table.keep(largest_parts(table.a, table.b, table.voxels))
        labelled = np.bincount(np.searchsorted(ids, table.a), table.voxels, len(ids))
        truth_ids, shares = np.zeros(len(ids), np.uint64), np.zeros(len(ids))
        rows = np.searchsorted(ids, best.a)
        truth_ids[rows], shares[rows] = best.b, best.voxels / labelled[rows]
        return Matches(truth_ids, shares)

    def ids_at_points(self, number: int) -> np.ndarray:
        """Return the segment at each of the `number` voxels; 0 outside the volume."""
        ids = np.zeros(number, np.uint64)
        ids[self.points.numbers] = self.points.ids
        return ids


class SegmentCounter:
    """Counts the segments of blocks, in any order and from several threads.

    Parameters
    ----------
    truth : callable, optional
        Returns the bodies in a box; 0 is background.
    points : int64 ndarray of shape (K, 4), optional
        Voxels whose segments to look up, from `sorted_points`. It may be on a disk.
    pom : callable, optional
        Returns the probabilities in a box, uint8 as ``ffn segment`` writes them.
    """

    def __init__(self, truth: Read | None = None, points: np.ndarray | None = None, pom: Read | None = None) -> None:
        self._truth = truth and one_at_a_time(truth)
        self._pom = pom and one_at_a_time(pom)
        self._points = np.empty((0, 4), np.int64) if points is None else points

    def count(self, block: Box, labels: np.ndarray) -> Counts:
        """Count one block.

        Parameters
        ----------
        block : Box
            Box of `labels`. Blocks must not overlap.
        labels : uint64 ndarray of shape (Z, Y, X)
            Segment ids.
        """
        rows = slice(*np.searchsorted(self._points[:, 0], (block.start[0], block.stop[0])))
        points = np.asarray(self._points[rows])
        points = points[block.holds(points[:, :3])]
        return Counts(
            block_segments(labels, block),
            count_pairs(labels, self._truth(block)).foreground() if self._truth else merge_tables([]),
            block_pom(labels, self._pom(block)) if self._pom else _merge_pom([]),
            PointIds(points[:, 3], labels[tuple((points[:, :3] - block.start).T)]),
        )


def sorted_points(points_zyx: np.ndarray) -> np.ndarray:
    """Return points with their numbers, by ascending z, so that a block finds its own."""
    numbered = np.column_stack([points_zyx, np.arange(len(points_zyx))]).astype(np.int64)
    return numbered[np.argsort(points_zyx[:, 0], kind="stable")]


def merge_counts(parts: Iterable[Counts]) -> Counts:
    """Combine the counts of disjoint blocks. Memory grows with the number of segments, not with that of blocks."""
    pending: list[Counts] = []
    num_rows, limit = 0, MAX_PENDING
    for part in parts:
        pending.append(part)
        num_rows += part.num_rows + ROWS_PER_PART
        if num_rows > limit:
            pending = [_merged(pending)]
            num_rows = pending[0].num_rows
            # With a fixed limit, each block would sort all of more segments than that again.
            limit = max(MAX_PENDING, 2 * num_rows)
    return _merged(pending)


def _merged(parts: list[Counts]) -> Counts:
    nothing = PointIds(np.empty(0, np.int64), np.empty(0, np.uint64))
    points = [nothing, *(part.points for part in parts)]
    return Counts(
        merge_segments([part.segments for part in parts]),
        merge_tables(part.pairs for part in parts),
        _merge_pom([part.pom for part in parts]),
        PointIds(*(np.concatenate([getattr(each, key) for each in points]) for key in ("numbers", "ids"))),
    )


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


def number_segments(labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Replace each wanted id by its index in `wanted`, counted from 1, and all other ids by 0.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        Segment ids.
    wanted : uint64 ndarray of shape (N,)
        Ids in ascending order.

    Returns
    -------
    uint32 ndarray of shape (Z, Y, X)
        Needs half the memory of `labels` in the libraries that process it.
    """
    numbers = np.zeros(labels.shape, np.uint32)
    if len(wanted):
        for section, target in zip(labels, numbers, strict=True):  # one section at a time saves memory
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
