"""Which ids of two overlapping subvolumes are the same object."""

from __future__ import annotations

import numpy as np

from ffn.config import ReconcileConfig


class PairCounts:
    """Voxels that each pair of non-zero ids has in common, summed over blocks; memory by pairs, not voxels."""

    def __init__(self) -> None:
        self._pairs = np.empty((0, 2), np.uint64)
        self._counts = np.empty(0, np.int64)

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Count the voxels of two integer arrays of one shape, in the same place."""
        both = (a != 0) & (b != 0)
        voxels = np.stack([a[both], b[both]], axis=1).astype(np.uint64)
        pairs, counts = np.unique(voxels, axis=0, return_counts=True)
        stacked = np.concatenate([self._pairs, pairs])
        self._pairs, inverse = np.unique(stacked, axis=0, return_inverse=True)
        totals = np.zeros(len(self._pairs), np.int64)
        np.add.at(totals, inverse.ravel(), np.concatenate([self._counts, counts]))
        self._counts = totals

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs, uint64 of shape (N, 2), in ascending order and their voxels, int64 (N,)."""
        return self._pairs, self._counts


def matches(pairs: np.ndarray, counts: np.ndarray, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs that are one object: each is the other's best, by enough voxels.

    Fractions are taken over voxels that both subvolumes segmented, because the outer shell of half a FOV is only
    partly reachable and says nothing.

    Parameters
    ----------
    pairs : uint64 ndarray of shape (N, 2)
        Ids in the first and in the second subvolume.
    counts : int64 ndarray of shape (N,)
        Voxels in common.
    config : ReconcileConfig
        Minimal voxels and minimal fraction of both sides.

    Returns
    -------
    bool ndarray of shape (N,)
        True where the ids are to be joined. A tie for the best joins nothing: a wrong merge costs more than a split.
    """
    enough = counts >= config.min_overlap_voxels
    for side in (0, 1):
        _, inverse = np.unique(pairs[:, side], return_inverse=True)
        inverse = inverse.ravel()
        total = np.zeros(inverse.max(initial=-1) + 1, np.int64)
        best = np.zeros_like(total)
        np.add.at(total, inverse, counts)
        np.maximum.at(best, inverse, counts)
        is_best = counts == best[inverse]
        num_best = np.zeros_like(total)
        np.add.at(num_best, inverse, is_best)
        enough &= is_best & (num_best[inverse] == 1) & (counts >= config.min_overlap_fraction * total[inverse])
    return enough
