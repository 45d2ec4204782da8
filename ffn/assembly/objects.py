"""The objects of flood filling, of which segments are connected components."""

from __future__ import annotations

import numpy as np

from ffn.contingency import RowLookup


class Objects:
    """Which segments are components of one object. Any other segment is an object of its own.

    Tables of pairs are by object, and turned into pairs of segments only where these are near each other: an object of
    n components has n² / 2 pairs of them.

    Examples
    --------
    >>> objects = Objects(np.array([[4, 4], [9, 4]]))
    >>> objects.of(np.array([3, 9])).tolist(), objects.of_pair((7, 9))
    ([3, 4], (4, 7))
    >>> objects.segments(np.array([[3, 4], [4, 8]]), np.array([0, 3, 4, 9])).tolist()
    [[3, 4], [3, 9], [4, 9]]
    """

    def __init__(self, components: np.ndarray | None = None) -> None:
        components = np.empty((0, 2), np.int64) if components is None else components
        self._rows = RowLookup(components[:, 0])
        self._objects = components[:, 1].astype(np.uint64)

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
        """Return the pairs among segments that belong to given pairs of objects, or to one object."""
        objects = self.of(ids)
        by_object = ids.astype(np.uint64)[np.argsort(objects, kind="stable")]
        owners, start, count = np.unique(np.sort(objects), return_index=True, return_counts=True)
        several = owners[count > 1]
        found = np.concatenate([pairs.astype(np.uint64), np.stack([several, several], axis=1)])
        lookup = RowLookup(owners)
        for side in (0, 1):
            entry = lookup.find(found[:, side])
            found, entry = found[entry >= 0], entry[entry >= 0]
            which = np.repeat(np.arange(len(entry)), count[entry])
            step = np.arange(len(which)) - np.repeat(np.cumsum(count[entry]) - count[entry], count[entry])
            found = found[which]
            found[:, side] = by_object[start[entry][which] + step]
        return np.unique(np.sort(found[found[:, 0] != found[:, 1]], axis=1), axis=0)


ALONE = Objects()
