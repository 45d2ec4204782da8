"""Sizes, bounding boxes, mean POM, bodies and seeds of all segments of a layer, counted block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ffn.contingency import ContingencyTable, count_pairs, find_runs, largest_parts, merge_tables
from ffn.geometry import Box
from ffn.io.tables import Tables
from ffn.io.volume import Read

MAX_PENDING = 2**22  # rows that wait before they are merged: at most 256 MiB
ROWS_PER_PART = 64  # that need the memory of a part without rows
STRIDE = 2**12  # seeds that are read at a time; our choice
POM_STEPS = 254  # of probabilities stored as 1 … 255; 0 was never segmented


@dataclass(frozen=True)
class Segments:
    """Facts about segments, by ascending id; int64 but for the ids."""

    ids: np.ndarray  # uint64, without 0
    voxels: np.ndarray
    start_zyx: np.ndarray  # of the bounding box, full-volume voxels, of shape (N, 3)
    stop_zyx: np.ndarray
    pom_steps: np.ndarray  # sum in units of 1 / POM_STEPS: whole numbers, whose sum depends on no order of the blocks
    pom_voxels: np.ndarray  # that have a POM

    def box(self, segment_ids: list[int]) -> Box | None:
        """Return the common bounding box of some segments; None if none of them occurs."""
        rows = np.isin(self.ids, np.array(segment_ids, np.uint64))
        if not rows.any():
            return None
        start, stop = self.start_zyx[rows].min(0).tolist(), self.stop_zyx[rows].max(0).tolist()
        return Box(tuple(start), tuple(stop))

    def mean_pom(self) -> np.ndarray:
        """Return the mean POM of each segment, over its voxels that have one; 0 if none has."""
        return self.pom_steps / (POM_STEPS * np.maximum(self.pom_voxels, 1))


@dataclass(frozen=True)
class Counts:
    """Facts about the segments of a block or of a volume."""

    segments: Segments
    pairs: ContingencyTable  # voxels shared with bodies of the ground truth
    points: np.ndarray  # uint64 of shape (N, 2): numbers of given voxels, and the segment at each, 0 for none

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All columns, for a record."""
        pairs = {f"pairs.{name}": column for name, column in vars(self.pairs).items()}
        return {**vars(self.segments), **pairs, "points": self.points}

    @classmethod
    def of(cls, column: Callable[[str], np.ndarray]) -> Counts:
        """Return the counts in a record, of which `column` returns the arrays."""
        segments = Segments(*map(column, Segments.__dataclass_fields__))
        pairs = ContingencyTable(*(column(f"pairs.{name}") for name in ContingencyTable.__dataclass_fields__))
        return cls(segments, pairs, column("points"))

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return len(self.segments.ids) + len(self.pairs.a) + len(self.points)

    def matches(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the body that shares most voxels with each segment, 0 for none, and the share of labelled ones."""
        table, ids = self.pairs, self.segments.ids
        best = table.keep(largest_parts(table.a, table.b, table.voxels))
        labelled = np.bincount(np.searchsorted(ids, table.a), table.voxels, len(ids))
        truth_ids, shares = np.zeros(len(ids), np.uint64), np.zeros(len(ids))
        rows = np.searchsorted(ids, best.a)
        truth_ids[rows], shares[rows] = best.b, best.voxels / labelled[rows]
        return truth_ids, shares

    def ids_at_points(self, number: int) -> np.ndarray:
        """Return the segment at each of the `number` voxels; 0 outside the volume."""
        ids = np.zeros(number, np.uint64)
        ids[self.points[:, 0].astype(np.int64)] = self.points[:, 1]
        return ids


def count_segments(
    block: Box,
    labels: np.ndarray,
    truth: Read | None = None,
    pom: Read | None = None,
    points: np.ndarray | None = None,
) -> Counts:
    """Count the segments of a block of labels; with `truth` also their bodies, with `pom` (uint8) their POM.

    `points` are voxels to look up, and their numbers.

    >>> labels, pom = np.array([[[7, 7, 0, 3]]], np.uint64), np.array([[[255, 1, 255, 0]]], np.uint8)
    >>> found = count_segments(Box((5, 0, 0), (6, 1, 4)), labels, pom=lambda block: pom).segments
    >>> found.ids.tolist(), found.voxels.tolist(), found.start_zyx.tolist(), found.stop_zyx.tolist()
    ([3, 7], [1, 2], [[5, 0, 3], [5, 0, 0]], [[6, 1, 4], [6, 1, 2]])
    >>> found.pom_steps.tolist(), found.pom_voxels.tolist()
    ([0, 254], [0, 2])
    """
    first, lengths = find_runs(labels, within_rows=True)
    start = np.stack(np.unravel_index(first, labels.shape), axis=1) + block.start
    stop = start + 1
    stop[:, 2] = start[:, 2] + lengths
    ids = labels.ravel()[first].astype(np.uint64)
    pom_steps = pom_voxels = np.zeros(len(first), np.int64)
    if pom and len(first):
        steps = pom(block).ravel()
        pom_voxels = np.add.reduceat(steps > 0, first, dtype=np.int64)
        pom_steps = np.add.reduceat(steps, first, dtype=np.int64) - pom_voxels
    columns = (ids, lengths, start, stop, pom_steps, pom_voxels)
    return Counts(
        _grouped(Segments(*(column[ids > 0] for column in columns))),
        count_pairs(labels, truth(block)).foreground() if truth else merge_tables([]),
        np.empty((0, 2), np.uint64) if points is None else _look_up(block, labels, points),
    )


def seed_tables(seeds_zyx: np.ndarray) -> dict[str, np.ndarray]:
    """Return seeds with their numbers, by ascending z, and the z of every `STRIDE`-th, for `seeds_near`."""
    numbered = np.column_stack([seeds_zyx, np.arange(len(seeds_zyx))]).astype(np.int64)
    numbered = numbered[np.argsort(seeds_zyx[:, 0], kind="stable")]
    return {"seeds": numbered, "seeds_z": numbered[::STRIDE, 0]}


def seeds_near(tables: Tables, block: Box) -> np.ndarray:
    """Return rows of `seed_tables` that have all seeds in a block: there may be more seeds than fit into memory."""
    z = tables.read("seeds_z")
    first, last = np.searchsorted(z, [block.start[0], block.stop[0]]).tolist()
    return tables.read("seeds", max(0, first - 1) * STRIDE, min(last * STRIDE, tables.arrays["seeds"].shape[0]))


def _look_up(block: Box, labels: np.ndarray, points: np.ndarray) -> np.ndarray:
    inside = points[block.holds(points[:, :3])]
    ids = labels[tuple((inside[:, :3] - block.start).T)]
    return np.stack([inside[:, 3].astype(np.uint64), ids.astype(np.uint64)], axis=1)


def merge_counts(parts: Iterable[Counts]) -> Counts:
    """Combine the counts of disjoint blocks. Memory grows with the number of segments, not with that of blocks."""
    nothing = count_segments(Box.from_shape((1, 1, 1)), np.zeros((1, 1, 1), np.uint64))
    pending, num_rows, limit = [nothing], 0, MAX_PENDING
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
    columns = [[getattr(part.segments, name) for part in parts] for name in Segments.__dataclass_fields__]
    return Counts(
        _grouped(Segments(*map(np.concatenate, columns))),
        merge_tables(part.pairs for part in parts),
        np.concatenate([part.points for part in parts]),
    )


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
        np.add.reduceat(rows.pom_steps[order], first),
        np.add.reduceat(rows.pom_voxels[order], first),
    )


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
