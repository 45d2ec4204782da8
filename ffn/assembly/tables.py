"""Tables of a segmentation: where objects claimed the same voxels, and which segments were one object.

``overlaps`` has rows of id, larger id, first voxel z, y, x of a cell (`ffn.geometry.cell_shape`), and voxels in that
cell that both objects claimed. ``components`` has rows of segment and object, for the components of every object that
has several.
"""

from __future__ import annotations

import numpy as np

from ffn.contingency import RowLookup, add_up
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import read_table

ORIGINS = "origins"
OVERLAPS = "overlaps"
COMPONENTS = "components"
FIRST_OVERLAP = "first_overlap"  # in stores of earlier versions


def read_rows(spec: str, name: str, num_columns: int) -> np.ndarray:
    """Return a table of a volume's file as int64; no rows if there is no such table."""
    rows = read_table(spec, name)
    return np.empty((0, num_columns), np.int64) if rows is None else rows.astype(np.int64)


def overlap_rows(claims: np.ndarray) -> np.ndarray:
    """Add up rows of ``overlaps`` by pair and cell, smaller id first, ascending; without background and equal ids."""
    a, b = claims[:, 0], claims[:, 1]
    rows = (a != b) & (a != 0) & (b != 0)
    return add_up(np.column_stack([np.minimum(a, b), np.maximum(a, b), claims[:, 2:]])[rows])


def read_overlaps(spec: str, near: Box) -> np.ndarray:
    """Read the rows of ``overlaps`` (int64, (N, 6)) whose cells begin in a box, ascending."""
    claims = read_table(spec, OVERLAPS, lambda rows: near.holds(rows[:, 2:5]))
    if claims is None:
        raise VolumeError(
            f"{spec}: its file has no table {OVERLAPS!r}, expected a file of ffn segment, reconcile or consensus"
        )
    return overlap_rows(claims.astype(np.int64))


class Objects:
    """Which segments are components of one object. Any other segment is an object of its own.

    Tables of pairs name objects, and become pairs of segments only where these are near each other: an object of n
    components has n² / 2 pairs of them.

    Examples
    --------
    >>> objects = Objects(np.array([[4, 4], [9, 4]]))
    >>> objects.of(np.array([3, 9])).tolist()
    [3, 4]
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
