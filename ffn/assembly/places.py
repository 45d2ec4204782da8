"""Tables of cells in the order of places, so that a job reads the rows near its box and not those of the volume."""

from __future__ import annotations

import math

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, zyx
from ffn.io.open import read_table
from ffn.io.scratch import Table, parts_of

OVERLAPS = "overlaps"
FIRST = "first_overlap"  # of the rows, in each place
CELLS = 8  # along the sides of a place; our choice: an eighth of a job of agglomeration or less


class Places:
    """Parts of a volume, each of `CELLS` cells along its sides, by which tables of cells are sorted.

    The table ``overlaps`` has the rows of the first place first, and so on, in zyx order of places. ``first_overlap``
    has the first row of each place, and the number of all rows at its end.

    Examples
    --------
    >>> places = Places(Box((0, 0, 100), (100, 200, 600)), (8.0, 8.0, 8.0))
    >>> places.of(np.array([[0, 192, 96], [0, 0, 576]])).tolist(), places.runs(Box((0, 0, 400), (9, 9, 599)))
    ([4, 3], [(2, 4)])
    """

    def __init__(self, box: Box, voxel_size_zyx_nm: VoxelSize) -> None:
        self._side = np.array(cell_shape(voxel_size_zyx_nm)) * CELLS
        self._start = np.array(box.start) // self._side
        self.shape: ZYX = zyx(-(-np.array(box.stop) // self._side) - self._start)

    def of(self, cells_zyx: np.ndarray) -> np.ndarray:
        """Return the number (int64) of the place of each cell, from its first voxel; N rows of zyx."""
        numbers = np.clip(cells_zyx // self._side - self._start, 0, np.array(self.shape) - 1)
        return np.ravel_multi_index(tuple(numbers.T), self.shape)

    def first(self, overlaps: Table) -> np.ndarray:
        """Return ``first_overlap`` (int64) of a table that is sorted by place."""
        counts = np.zeros(int(np.prod(self.shape)), np.int64)
        for rows in parts_of(overlaps):
            counts += np.bincount(self.of(rows[:, 2:5]), minlength=len(counts))
        return np.append(0, np.cumsum(counts))

    def tables(self, overlaps: np.ndarray) -> dict[str, np.ndarray]:
        """Return both tables of rows in memory; those of one place keep their order."""
        found = overlaps[np.argsort(self.of(overlaps[:, 2:5]), kind="stable")]
        return {OVERLAPS: found, FIRST: self.first(found)}

    def runs(self, near: Box) -> list[tuple[int, int]]:
        """Return the numbers of the places that have voxels in `near`, as ranges."""
        start = np.clip(np.array(near.start) // self._side - self._start, 0, self.shape)
        stop = np.clip(-(-np.array(near.stop) // self._side) - self._start, start, self.shape)
        (z, y, x), (z_stop, y_stop, x_stop) = start.tolist(), stop.tolist()
        rows = (int(np.ravel_multi_index((a, b, 0), self.shape)) for a in range(z, z_stop) for b in range(y, y_stop))
        return [(row + x, row + x_stop) for row in rows if x < x_stop]


def ranges_near(spec: str, places: Places, near: Box) -> list[tuple[int, int]] | None:
    """Return the ranges of rows of a volume's ``overlaps`` in places near a box; None if it is not sorted by place."""
    number = math.prod(places.shape)
    ends = [end for start, stop in places.runs(near) for end in (start, stop)]
    rows = read_table(spec, FIRST, ranges=[*((end, end + 1) for end in ends), (number, number + 2)])
    if rows is None:
        return None
    if len(rows) != len(ends) + 1:  # it has one row more than there are places
        raise VolumeError(
            f"{spec}: its table {FIRST!r} is not of its voxel size, expected {number + 1} rows. Has the voxel size "
            "been changed? Rerun the stage that made it"
        )
    return list(zip(rows[:-1:2].tolist(), rows[1:-1:2].tolist(), strict=True))
