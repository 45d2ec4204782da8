"""Decide which ids of two overlapping subvolumes are the same object."""

from __future__ import annotations

import numpy as np

from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable


def best_of_each_other(table: ContingencyTable, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs of ids that are each other's best partner.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of the overlap by their ids in the first and the second subvolume. Only voxels that both segmented count:
        flood filling reaches only part of the outer shell, half a FOV thick, so background there means nothing.
    config : ReconcileConfig
        Minimum voxels, and minimum share of both sides.

    Returns
    -------
    bool ndarray of shape (N,)
        A tie for the best partner joins nothing: a wrong merge costs more than a split.
    """
    chosen = table.voxels >= config.min_overlap_voxels
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
    """Choose the pairs in which one id lies almost wholly inside the other: one subvolume has split the object.

    Parameters
    ----------
    table : ContingencyTable
        As in `best_of_each_other`.
    voxels : pair of int64 ndarrays of shape (N,)
        Voxels of both ids in their whole subvolumes. A part counts only if it ends in the overlap. One that
        continues beyond it may be a separate neurite that the other subvolume merged with its neighbour. Matching it
        would spread that merger from subvolume to subvolume.
    config : ReconcileConfig
        Minimum voxels, and minimum share of the part; None chooses no pair.

    Returns
    -------
    bool ndarray of shape (N,)
    """
    if config.min_inside_fraction is None:
        return np.zeros(len(table.voxels), bool)
    smaller = config.min_inside_fraction * np.minimum(*voxels)
    return (table.voxels >= config.min_overlap_voxels) & (table.voxels >= smaller)
