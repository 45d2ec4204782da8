"""Which ids of two overlapping subvolumes are the same object."""

from __future__ import annotations

import numpy as np

from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable


def best_of_each_other(table: ContingencyTable, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs of ids of which each is the other's best partner.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of the overlap by their ids in the first and in the second subvolume, only those that both segmented:
        the outer shell of half a FOV is only partly reachable and says nothing.
    config : ReconcileConfig
        Minimal voxels and share of both sides.

    Returns
    -------
    bool ndarray of shape (N,)
        A tie for the best joins nothing: a wrong merge costs more than a split.
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
    """Choose the pairs of ids of which one lies almost wholly in the other, which one subvolume then has split.

    Parameters
    ----------
    table : ContingencyTable
        As in `best_of_each_other`.
    voxels : pair of int64 ndarrays of shape (N,)
        Of the ids of each row in their whole subvolumes. Only a part that ends in the overlap counts. One that goes on
        beyond it may be a neurite of its own that the other subvolume has merged with its neighbour, which looks the
        same; such a match would hand the merger on from subvolume to subvolume.
    config : ReconcileConfig
        Minimal voxels, and share of the part or None.

    Returns
    -------
    bool ndarray of shape (N,)
    """
    if config.min_inside_fraction is None:
        return np.zeros(len(table.voxels), bool)
    smaller = config.min_inside_fraction * np.minimum(*voxels)
    return (table.voxels >= config.min_overlap_voxels) & (table.voxels >= smaller)
