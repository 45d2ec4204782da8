"""Tables of a segmentation: where objects claimed the same voxels, and which segments were one object.

``overlaps`` has rows of id, larger id, first voxel z, y, x of a cell (`ffn.geometry.cell_shape`), and voxels in that
cell that both objects claimed. It is sorted by the places of an `OverlapIndex`, and ``first_overlap`` has the first row
of each place, so that a job reads the rows near its box and not those of the volume. ``components`` has rows of
segment and object, for the components of every object that has several.
"""

from __future__ import annotations

import math

import numpy as np

from ffn.contingency import RowLookup, add_up
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, zyx
from ffn.io.open import read_table
from ffn.io.scratch import Table, parts_of
from ffn.io.volume import Volume, voxel_size_of

ORIGINS = "origins"
OVERLAPS = "overlaps"
FIRST_OVERLAP = "first_overlap"
COMPONENTS = "components"
CELLS = 8  # along the sides of a place of the index; our choice: an eighth of a job of agglomeration or less


def read_rows(spec: str, name: str, num_columns: int) -> np.ndarray:
    """Return a table of a volume's file as int64; no rows if there is no such table."""
    rows = read_table(spec, name)
    return np.empty((0, num_columns), np.int64) if rows is None else rows.astype(np.int64)


def overlap_rows(claims: np.ndarray) -> np.ndarray:
    """Add up rows of ``overlaps`` by pair and cell, smaller id first, ascending; without background and equal ids."""
    a, b = claims[:, 0], claims[:, 1]
    rows = (a != b) & (a != 0) & (b != 0)
    return add_up(np.column_stack([np.minimum(a, b), np.maximum(a, b), claims[:, 2:]])[rows])


class OverlapIndex:
    """Places of a volume, `CELLS` cells along each side, by which ``overlaps`` is sorted; numbered in zyx order.

    Examples
    --------
    >>> index = OverlapIndex(Box((0, 0, 100), (100, 200, 600)), (10.0, 10.0, 10.0))
    >>> index.place_of(np.array([[0, 192, 96], [0, 0, 576]])).tolist(), index.runs(Box((0, 0, 400), (9, 9, 599)))
    ([4, 3], [(2, 4)])
    """

    def __init__(self, box: Box, voxel_size_zyx_nm: VoxelSize) -> None:
        self._side = np.array(cell_shape(voxel_size_zyx_nm)) * CELLS
        self._start = np.array(box.start) // self._side
        self.shape: ZYX = zyx(-(-np.array(box.stop) // self._side) - self._start)

    def place_of(self, cells_zyx: np.ndarray) -> np.ndarray:
        """Return the number (int64) of the place of each cell, from its first voxel; N rows of zyx."""
        numbers = np.clip(cells_zyx // self._side - self._start, 0, np.array(self.shape) - 1)
        return np.ravel_multi_index(tuple(numbers.T), self.shape)

    def first_rows(self, overlaps: Table) -> np.ndarray:
        """Return ``first_overlap`` (int64) of a table that is sorted by place; its end is the number of rows."""
        counts = np.zeros(math.prod(self.shape), np.int64)
        for rows in parts_of(overlaps):
            counts += np.bincount(self.place_of(rows[:, 2:5]), minlength=len(counts))
        return np.append(0, np.cumsum(counts))

    def tables(self, overlaps: np.ndarray) -> dict[str, np.ndarray]:
        """Return both tables of rows in memory; those of one place keep their order."""
        found = overlaps[np.argsort(self.place_of(overlaps[:, 2:5]), kind="stable")]
        return {OVERLAPS: found, FIRST_OVERLAP: self.first_rows(found)}

    def runs(self, near: Box) -> list[tuple[int, int]]:
        """Return the numbers of the places that have voxels in `near`, as ranges."""
        start = np.clip(np.array(near.start) // self._side - self._start, 0, self.shape)
        stop = np.clip(-(-np.array(near.stop) // self._side) - self._start, start, self.shape)
        (z, y, x), (z_stop, y_stop, x_stop) = start.tolist(), stop.tolist()
        rows = (int(np.ravel_multi_index((a, b, 0), self.shape)) for a in range(z, z_stop) for b in range(y, y_stop))
        return [(row + x, row + x_stop) for row in rows if x < x_stop]


def read_overlaps(spec: str, segmentation: Volume, near: Box) -> np.ndarray:
    """Read the rows of ``overlaps`` (int64, (N, 6)) whose cells begin in a box, ascending, and no others."""
    claims = read_table(spec, OVERLAPS, lambda rows: near.holds(rows[:, 2:5]), _ranges_near(spec, segmentation, near))
    if claims is None:
        raise VolumeError(
            f"{spec}: its file has no table {OVERLAPS!r}, expected a file of ffn segment, reconcile or consensus"
        )
    return overlap_rows(claims.astype(np.int64))


def _ranges_near(spec: str, segmentation: Volume, near: Box) -> list[tuple[int, int]] | None:
    """Return the ranges of rows of ``overlaps`` near a box; None if the table is not sorted by place."""
    index = OverlapIndex(segmentation.box, voxel_size_of(segmentation))
    number = math.prod(index.shape)
    ends = [end for start, stop in index.runs(near) for end in (start, stop)]
    rows = read_table(spec, FIRST_OVERLAP, ranges=[*((end, end + 1) for end in ends), (number, number + 2)])
    if rows is None:
        return None
    if len(rows) != len(ends) + 1:  # it has one row more than there are places
        raise VolumeError(
            f"{spec}: its table {FIRST_OVERLAP!r} does not fit its voxel size, expected {number + 1} rows. Has the "
            "voxel size been changed? Rerun the stage that made it"
        )
    return list(zip(rows[:-1:2].tolist(), rows[1:-1:2].tolist(), strict=True))


class Objects:
    """Which segments are components of one object. Any other segment is an object of its own.

    Tables of pairs name objects, and become pairs of segments only where these are near each other: an object of n
    components has n² / 2 pairs of them.

    Examples
    --------
    >>> objects = Objects(np.array([[4, 4], [9, 4]]))
    >>> objects.of(np.array([3, 9])).tolist(), objects.of_pair((7, 9))
    ([3, 4], (4, 7))
    >>> objects.segments(np.array([[3, 4], [4, 8]]), np.array([0, 3, 4, 9])).tolist()
    [[3, 4], [3, 9], [4, 9]]
    """

    def __init__(self, components: np.ndarray) -> None:
        self._rows = RowLookup(components[:, 0])
        self._objects = components[:, 1].astype(np.uint64)

    @classmethod
    def read(cls, spec: str) -> Objects:
        """Return the objects of a volume's segments."""
        return cls(read_rows(spec, COMPONENTS, 2))

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the object (uint64) of each segment; `ids` has any shape."""
        found = ids.astype(np.uint64)
        rows = self._rows.find(found.ravel()).reshape(found.shape)
        found[rows >= 0] = self._objects[rows[rows >= 0]]
        return found

    def of_pair(self, pair: tuple[int, int]) -> tuple[int, int]:
        """Return the objects of two segments, the smaller one first."""
        a, b = sorted(self.of(np.array(pair, np.uint64)).tolist())
        return a, b

    def segments(self, pairs: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Return the pairs among segments that belong to given pairs of objects, or to one object.

        `pairs` are different objects, `ids` are segments. The result (uint64, (K, 2)) has the smaller segment first and
        is ascending.
        """
        objects = self.of(ids)
        by_object = ids.astype(np.uint64)[np.argsort(objects, kind="stable")]
        owners, start, count = np.unique(np.sort(objects), return_index=True, return_counts=True)
        several = owners[count > 1]
        found = np.concatenate([pairs.astype(np.uint64), np.stack([several, several], axis=1)])
        lookup = RowLookup(owners)
        for side in (0, 1):
            entry = lookup.find(found[:, side])
            found, entry = found[entry >= 0], entry[entry >= 0]
            which, places = expanded(start[entry], count[entry])
            found = found[which]
            found[:, side] = by_object[places]
        return np.unique(np.sort(found[found[:, 0] != found[:, 1]], axis=1), axis=0)


ALONE = Objects(np.empty((0, 2), np.int64))


def expanded(starts: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the range, and the place in it, of every row in some ranges of rows.

    Examples
    --------
    >>> [column.tolist() for column in expanded(np.array([4, 9]), np.array([2, 1]))]
    [[0, 0, 1], [4, 5, 9]]
    """
    which = np.repeat(np.arange(len(counts)), counts)
    step = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + step
