"""Which ids of two overlapping subvolumes are the same object."""

from __future__ import annotations

import numpy as np

from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable


def matches(table: ContingencyTable, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs of ids that are one object.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of the overlap by their ids in the first and in the second subvolume, background among them.
    config : ReconcileConfig
        Minimal voxels and fractions.

    Returns
    -------
    uint64 ndarray of shape (N, 2)
        The pairs to be joined, for one of two reasons. Each is the other's best: a tie for the best joins nothing, and
        shares are taken of the voxels that both subvolumes segmented, because the outer shell of half a FOV is only
        partly reachable and says nothing. Or one lies almost wholly in the other, which one subvolume then has split:
        shares are taken of all its voxels in the overlap, because a segment that the other subvolume left out for the
        most part would else follow the specks that it did not. A wrong merge costs more than a split in both.
    """
    both = table.keep((table.truth != 0) & (table.segment != 0))
    chosen = _best_of_each_other(both, config)
    if config.min_inside_fraction is not None:
        chosen |= _inside(table, both, config.min_inside_fraction)
    return both.pairs[chosen & (both.voxels >= config.min_overlap_voxels)]


def _best_of_each_other(both: ContingencyTable, config: ReconcileConfig) -> np.ndarray:
    """Whether both ids of a row are the other's only best, by a large enough share."""
    chosen = np.ones(len(both.voxels), bool)
    for ids in (both.truth, both.segment):
        index = np.unique(ids, return_inverse=True)[1]
        total, best, num_best = np.zeros((3, len(ids)), np.int64)
        np.add.at(total, index, both.voxels)
        np.maximum.at(best, index, both.voxels)
        is_best = both.voxels == best[index]
        np.add.at(num_best, index, is_best)
        chosen &= is_best & (num_best[index] == 1) & (both.voxels >= config.min_overlap_fraction * total[index])
    return chosen


def _inside(table: ContingencyTable, both: ContingencyTable, fraction: float) -> np.ndarray:
    """Whether the voxels of a row in `both` are at least `fraction` of one of its ids in the whole overlap."""
    inside = np.zeros(len(both.voxels), bool)
    for all_ids, ids in ((table.truth, both.truth), (table.segment, both.segment)):
        known, index = np.unique(all_ids, return_inverse=True)
        total = np.zeros(len(known), np.int64)
        np.add.at(total, index, table.voxels)
        inside |= both.voxels >= fraction * total[np.searchsorted(known, ids)]
    return inside
