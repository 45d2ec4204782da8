"""Contingency tables of two labellings, counted block by block, and the run-length and look-up tools they need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MIN_PENDING_ROWS = 100_000  # rows that wait before a merge; sorting after every block would take quadratic time


@dataclass(frozen=True)
class ContingencyTable:
    """Sparse table of voxel counts: a row for each pair of ids that occurs, sorted by a, then b."""

    a: np.ndarray  # (N,), uint64, ids in the first labelling, the ground truth in scores; 0 is background
    b: np.ndarray  # (N,), uint64, ids in the second one
    voxels: np.ndarray  # (N,), int64, how many voxels carry both

    @property
    def num_voxels(self) -> int:
        """Number of voxels counted."""
        return int(self.voxels.sum())

    def keep(self, rows: np.ndarray) -> ContingencyTable:
        """Return the table of the selected rows: a boolean array of shape (N,), or ascending row numbers."""
        return ContingencyTable(self.a[rows], self.b[rows], self.voxels[rows])

    def foreground(self) -> ContingencyTable:
        """Return the table without the rows in which either id is 0."""
        return self.keep((self.a != 0) & (self.b != 0))


def find_runs(*labels: np.ndarray, within_rows: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Find the runs of voxels with constant ids.

    On real tissue there are ten to twenty times fewer runs than voxels, so counting runs is faster.

    Examples
    --------
    >>> starts, lengths = find_runs(np.array([[4, 4, 7], [7, 7, 7]]))
    >>> starts.tolist(), lengths.tolist()
    ([0, 2], [2, 4])
    """
    flat = [one.ravel() for one in labels]
    changes = np.logical_or.reduce([one[1:] != one[:-1] for one in flat])
    if within_rows and flat[0].size:
        row = labels[0].shape[-1]
        changes[row - 1 :: row] = True
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))[: flat[0].size]
    return starts, np.diff(starts, append=flat[0].size)


def is_inner(labels: np.ndarray) -> np.ndarray:
    """Whether a voxel has the same label as all its neighbours, two along each axis.

    Examples
    --------
    >>> is_inner(np.array([4, 4, 4, 7])).tolist()
    [True, True, False, False]
    """
    inner = np.ones(labels.shape, bool)
    for axis in range(labels.ndim):
        ids, along = np.moveaxis(labels, axis, 0), np.moveaxis(inner, axis, 0)
        same = ids[1:] == ids[:-1]
        along[1:] &= same
        along[:-1] &= same
    return inner


def count_ids(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the voxels of every id, including 0."""
    starts, lengths = find_runs(labels)
    ids, first, number = np.unique(labels.ravel()[starts], return_index=True, return_inverse=True)
    voxels = np.bincount(number.ravel(), lengths, len(ids)).astype(np.int64)
    order = np.argsort(first)
    return ids[order].astype(np.uint64), voxels[order]


def count_pairs(a: np.ndarray, b: np.ndarray) -> ContingencyTable:
    """Count the voxels of every pair of ids.

    Examples
    --------
    >>> count_pairs(np.array([1, 1, 2]), np.array([7, 7, 7])).voxels.tolist()
    [2, 1]
    """
    starts, lengths = find_runs(a, b)
    return table_of(add_up(rows_of(ContingencyTable(a.ravel()[starts], b.ravel()[starts], lengths))))


class RowSum:
    """Sum of rows that arrive in parts, see `add_up`. Memory grows with the different rows, not with the parts."""

    def __init__(self, num_columns: int, dtype: np.dtype | type = np.int64) -> None:
        self._merged = np.empty((0, num_columns), dtype)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, rows: np.ndarray) -> None:
        """Add rows, in any order."""
        self._pending.append(rows)
        self._num_pending += len(rows)
        if self._num_pending > max(MIN_PENDING_ROWS, len(self._merged)):
            self._merged, self._pending, self._num_pending = self.rows(), [], 0

    def rows(self) -> np.ndarray:
        """Return the sum so far."""
        return add_up(np.concatenate([self._merged, *self._pending]))


def merge_tables(tables: Iterable[ContingencyTable]) -> ContingencyTable:
    """Add up the tables of disjoint blocks."""
    total = RowSum(3, np.uint64)
    for table in tables:
        total.add(rows_of(table))
    return table_of(total.rows())


def add_up(rows: np.ndarray) -> np.ndarray:
    """Add up the last column of rows that agree in all others.

    Examples
    --------
    >>> add_up(np.array([[2, 7, 1], [1, 9, 5], [2, 7, 3]])).tolist()
    [[1, 9, 5], [2, 7, 4]]
    """
    if not len(rows):
        return rows
    rows = rows[np.lexsort(rows[:, -2::-1].T)]
    first = np.flatnonzero(np.append(True, (rows[1:, :-1] != rows[:-1, :-1]).any(axis=1)))
    return np.column_stack([rows[first, :-1], np.add.reduceat(rows[:, -1], first)])


def largest_parts(owners: np.ndarray, parts: np.ndarray, voxels: np.ndarray) -> np.ndarray:
    """Find the largest part of each owner.

    Examples
    --------
    >>> largest_parts(np.array([5, 5, 5]), np.array([1, 2, 3]), np.array([4, 9, 9])).tolist()
    [1]
    """
    order = np.lexsort((parts, -voxels, owners))
    return order[np.unique(owners[order], return_index=True)[1]]


class RowLookup:
    """Find rows of ids in a table, for whole columns at once.

    Examples
    --------
    >>> lookup = RowLookup(np.array([1, 1, 4]), np.array([7, 8, 7]))
    >>> lookup.find(np.array([4, 1, 4]), np.array([7, 8, 8])).tolist()
    [2, 1, -1]
    """

    def __init__(self, *columns: np.ndarray) -> None:
        self._ids = [np.unique(column.astype(np.uint64)) for column in columns]
        codes, _ = self._codes(columns)
        self._order = np.argsort(codes)
        self._codes_in_order = codes[self._order]

    def find(self, *columns: np.ndarray) -> np.ndarray:
        """Return the row number (int64) of each row of `columns` in the table, -1 for rows that it lacks."""
        if not len(self._order):
            return np.full(len(columns[0]), -1, np.int64)
        codes, known = self._codes(columns)
        place = np.searchsorted(self._codes_in_order, codes).clip(max=len(self._order) - 1)
        return np.where(known & (self._codes_in_order[place] == codes), self._order[place], -1)

    def of_voxels(self, *volumes: np.ndarray) -> np.ndarray:
        """Return the row number at every voxel of volumes of ids of one shape."""
        starts, lengths = find_runs(*volumes)
        rows = self.find(*(volume.ravel()[starts] for volume in volumes))
        return np.repeat(rows, lengths).reshape(volumes[0].shape)

    def _codes(self, columns: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        """One number for each row, and whether the table has each of its ids."""
        codes, known = np.zeros(len(columns[0]), np.int64), np.ones(len(columns[0]), bool)
        for ids, values in zip(self._ids, columns, strict=True):
            values = values.astype(np.uint64, copy=False)  # numpy compares int64 with uint64 as float64
            place = np.searchsorted(ids, values).clip(max=max(0, len(ids) - 1))
            known &= ids[place] == values
            codes = codes * len(ids) + place
        return codes, known


def rows_of(table: ContingencyTable) -> np.ndarray:
    """Return a table as one uint64 array of shape (N, 3)."""
    return np.stack([column.astype(np.uint64) for column in (table.a, table.b, table.voxels)], axis=1)


def table_of(rows: np.ndarray) -> ContingencyTable:
    """Return the table of such rows."""
    a, b, voxels = np.ascontiguousarray(rows.T)
    return ContingencyTable(a, b, voxels.astype(np.int64))
