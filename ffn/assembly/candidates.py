"""Which fragments of a consensus may belong together: those that touch, and that one of the two inputs says more of."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ffn.assembly.carried import claims_of, overlap_rows
from ffn.assembly.contacts import spread
from ffn.contingency import ContingencyTable, RowLookup, count_pairs, merge_tables
from ffn.geometry import ZYX, Box, VoxelSize, zyx


def halo_of(max_gap: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return how far around a block `touching` has to see, voxels."""
    return zyx(np.ceil([max_gap * min(voxel_size_zyx_nm) / side + 1 for side in voxel_size_zyx_nm]))


def touching(
    fragments: np.ndarray, block: Box, outer: Box, voxel_size_zyx_nm: VoxelSize, max_gap: float
) -> ContingencyTable:
    """Count the faces between fragments, over gaps too.

    Parameters
    ----------
    fragments : uint64 ndarray of shape ``outer.shape``
        Labels, 0 is background.
    block : Box
        Faces whose lower voxel lies in it count, so every face belongs to one of disjoint blocks.
    outer : Box
        The block with a halo of `halo_of`, as far as there are voxels.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    max_gap : float
        From a fragment to the middle of a gap, in units of the smallest side, as agglomeration sees contacts: the
        border between two fragments is often one too small to be kept.

    Returns
    -------
    ContingencyTable
        Smaller label, larger label, faces. Memory grows with the pairs that touch, however many pieces an object has.
    """
    near = spread(fragments, voxel_size_zyx_nm, max_gap)
    tables = []
    for axis in range(3):
        step = zyx(int(axis == k) for k in range(3))
        lower = block.intersect(Box(outer.start, outer.shift(zyx(-n for n in step)).stop))
        a, b = near[lower.slices(outer.start)], near[lower.shift(step).slices(outer.start)]
        faces = (a != b) & (a != 0) & (b != 0)
        tables.append(count_pairs(np.minimum(a[faces], b[faces]), np.maximum(a[faces], b[faces])))
    return merge_tables(tables)


def candidates(
    table: ContingencyTable, ids: np.ndarray, faces: ContingencyTable, claims_a: np.ndarray, claims_b: np.ndarray
) -> np.ndarray:
    """List the touching fragments that one of the two segmentations had as one object, or as two that overlap.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of each pair (a, b): its rows are the fragments.
    ids : uint64 ndarray of shape (N,)
        As `ffn.assembly.consensus.fragment_ids` gives them.
    faces : ContingencyTable
        Of fragments that touch, as rows of `table`.
    claims_a, claims_b : int64 ndarrays of shape (M, 3)
        ``overlaps`` of the two inputs: id, other id, voxels.

    Returns
    -------
    int64 ndarray of shape (K, 3)
        Id, larger id, and the sum of what speaks for the pair: the voxels of the smaller fragment for each input that
        had both as one object, or the voxels that its two objects both claimed. Ascending.
    """
    one, other = faces.a.astype(np.int64), faces.b.astype(np.int64)
    smaller = np.minimum(table.voxels[one], table.voxels[other])
    voxels = np.zeros(len(one), np.int64)
    for column, claims in ((table.a, claims_a), (table.b, claims_b)):
        a, b = column[one], column[other]
        voxels += np.where((a == b) & (a != 0), smaller, _claimed(claims, a, b))
    chosen = voxels > 0
    return overlap_rows([claims_of(ids[one[chosen]], ids[other[chosen]], voxels[chosen])])


def _claimed(claims: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the voxels (int64) that `claims` has for each pair of ids, 0 where it has none."""
    one, other, voxels = claims.astype(np.uint64).T
    known = merge_tables([claims_of(one, other, voxels.astype(np.int64))])
    rows = RowLookup(known.a, known.b).find(np.minimum(a, b), np.maximum(a, b))
    return np.append(known.voxels, 0)[rows]  # row -1, a pair without claims, is the 0 at the end


def merged_faces(tables: Iterable[ContingencyTable]) -> ContingencyTable:
    """Add up the faces of disjoint blocks, whose labels are rows + 1, and return them by rows."""
    total = merge_tables(tables)
    return ContingencyTable(total.a - np.uint64(1), total.b - np.uint64(1), total.voxels)
