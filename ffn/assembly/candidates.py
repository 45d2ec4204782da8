"""Which fragments of a consensus may belong together: those that touch and that one of the two inputs connects."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ffn.assembly.carried import claims_of, overlap_rows
from ffn.assembly.contacts import spread
from ffn.contingency import ContingencyTable, RowLookup, count_pairs, merge_tables
from ffn.geometry import ZYX, Box, VoxelSize, zyx


def halo_of(max_gap: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return the halo, in voxels, that `touching` needs around a block."""
    return zyx(np.ceil([max_gap * min(voxel_size_zyx_nm) / side + 1 for side in voxel_size_zyx_nm]))


def touching(
    fragments: np.ndarray, block: Box, outer: Box, voxel_size_zyx_nm: VoxelSize, max_gap: float
) -> ContingencyTable:
    """Count the faces between fragments, also across gaps.

    Parameters
    ----------
    fragments : uint64 ndarray of shape ``outer.shape``
        Labels, 0 is background.
    block : Box
        A face counts if its lower voxel lies in the block, so disjoint blocks share no face.
    outer : Box
        The block with the halo of `halo_of`, cropped to the volume.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    max_gap : float
        Largest distance from a fragment to the middle of a gap, in units of the smallest side. Agglomeration sees
        contacts in the same way: between two fragments there is often one that was too small to keep.

    Returns
    -------
    ContingencyTable
        Smaller label, larger label, faces. Memory grows with the number of pairs that touch.
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
    """List the touching fragments that are one object, or two overlapping ones, in one of the two segmentations.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of each pair (a, b). Its rows are the fragments.
    ids : uint64 ndarray of shape (N,)
        Id of each fragment, from `ffn.assembly.consensus.fragment_ids`.
    faces : ContingencyTable
        Faces between fragments, which are given as rows of `table`.
    claims_a, claims_b : int64 ndarrays of shape (M, 3)
        ``overlaps`` of the two inputs: id, other id, voxels.

    Returns
    -------
    int64 ndarray of shape (K, 3)
        Id, larger id, and the evidence for the pair in voxels, ascending. Each input adds the size of the smaller
        fragment if it has both in one object, else the voxels that its two objects both claimed.
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
    """Return the voxels (int64) that `claims` lists for each pair of ids, 0 for pairs that it lacks."""
    one, other, voxels = claims.astype(np.uint64).T
    known = merge_tables([claims_of(one, other, voxels.astype(np.int64))])
    rows = RowLookup(known.a, known.b).find(np.minimum(a, b), np.maximum(a, b))
    return np.append(known.voxels, 0)[rows]  # pairs without claims have row -1, the appended 0


def merged_faces(tables: Iterable[ContingencyTable]) -> ContingencyTable:
    """Add up the faces of disjoint blocks, and turn their labels (row + 1) into rows."""
    total = merge_tables(tables)
    return ContingencyTable(total.a - np.uint64(1), total.b - np.uint64(1), total.voxels)
