"""Decide which ids of two overlapping subvolumes are the same object."""

from __future__ import annotations

import numpy as np

from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable

CERTAIN_SHARE = 0.5  # our choice: flood filling may miss half a FOV of an overlap on either side


def needed_voxels(
    voxels: tuple[np.ndarray, np.ndarray], share: np.ndarray | float, config: ReconcileConfig
) -> np.ndarray:
    """Return how many voxels two ids must have in common to be joined: fewer for segments of a smaller cross-section.

    Examples
    --------
    >>> needed_voxels((np.array([4096, 10**6]), np.array([3000, 5000])), 48 / 256, ReconcileConfig()).tolist()
    [384.0, 1000.0]
    """
    return np.minimum(config.min_overlap_voxels, CERTAIN_SHARE * share * np.maximum(*voxels))


def best_of_each_other(table: ContingencyTable, needed: np.ndarray, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs of ids that are each other's best partner.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of overlaps by their ids in the first and the second subvolume, different ones in each overlap. Only
        voxels that both segmented count: flood filling reaches only part of the outer shell, half a FOV thick, so
        background there means nothing.
    needed : float64 ndarray of shape (N,)
        Minimum voxels of each pair, see `needed_voxels`.
    config : ReconcileConfig
        Minimum share of both sides.

    Returns
    -------
    bool ndarray of shape (N,)
        A tie for the best partner joins nothing: a wrong merge costs more than a split.
    """
    chosen = table.voxels >= needed
    for ids in (table.a, table.b):
        index = np.unique(ids, return_inverse=True)[1]
        total, best, num_best = np.zeros((3, len(ids)), np.int64)
        np.add.at(total, index, table.voxels)
        np.maximum.at(best, index, table.voxels)
        is_best = table.voxels == best[index]
        np.add.at(num_best, index, is_best)
        chosen &= is_best & (num_best[index] == 1) & (table.voxels >= config.min_overlap_fraction * total[index])
    return chosen


def parts_inside(table: ContingencyTable, voxels: tuple[np.ndarray, np.ndarray], config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs in which one id lies almost wholly inside the other: one subvolume has split the object."""
    if config.min_inside_fraction is None:
        return np.zeros(len(table.voxels), bool)
    smaller = config.min_inside_fraction * np.minimum(*voxels)
    return (table.voxels >= config.min_overlap_voxels) & (table.voxels >= smaller)
