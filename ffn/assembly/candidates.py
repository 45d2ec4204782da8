"""Which fragments of a consensus may belong together: those that touch and that one of the two inputs connects."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ffn.assembly.carried import overlap_rows
from ffn.assembly.contacts import spread
from ffn.assembly.objects import ALONE, Objects
from ffn.contingency import ContingencyTable, RowLookup, RowSum, add_up
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, zyx


def halo_of(max_gap: float, voxel_size_zyx_nm: VoxelSize) -> ZYX:
    """Return the halo, in voxels, that `touching` needs around a block."""
    return zyx(np.ceil([max_gap * min(voxel_size_zyx_nm) / side + 1 for side in voxel_size_zyx_nm]))


def touching(fragments: np.ndarray, block: Box, outer: Box, voxel_size_zyx_nm: VoxelSize, max_gap: float) -> np.ndarray:
    """Count the faces between fragments, also across gaps."""
    near = spread(fragments, voxel_size_zyx_nm, max_gap)
    cell = cell_shape(voxel_size_zyx_nm)
    rows = [np.empty((0, 6), np.int64)]
    for axis in range(3):
        step = zyx(int(axis == k) for k in range(3))
        lower = block.intersect(Box(outer.start, outer.shift(zyx(-n for n in step)).stop))
        a, b = near[lower.slices(outer.start)], near[lower.shift(step).slices(outer.start)]
        where = np.nonzero((a != b) & (a != 0) & (b != 0))
        ids = np.sort(np.stack([a[where], b[where]], axis=1).astype(np.int64), axis=1)
        places = (np.stack(where, axis=1) + lower.start) // cell * cell
        rows.append(np.column_stack([ids, places, np.ones(len(ids), np.int64)]))
    return add_up(np.concatenate(rows))


def candidates(
    table: ContingencyTable,
    ids: np.ndarray,
    faces: np.ndarray,
    claims: tuple[np.ndarray, np.ndarray],
    objects: tuple[Objects, Objects] = (ALONE, ALONE),
) -> np.ndarray:
    """List the touching fragments that are one object, or two overlapping ones, in one of the two segmentations."""
    one, other = faces[:, 0], faces[:, 1]
    smaller = np.minimum(table.voxels[one], table.voxels[other])
    pairs = np.unique(faces[:, :2], axis=0)
    rows = [np.empty((0, 6), np.int64)]
    for column, claimed, owners in zip((table.a, table.b), claims, objects, strict=True):
        same = (column[one] == column[other]) & (column[one] != 0)
        rows.append(np.column_stack([faces[:, :5], smaller])[same])
        rows.append(_claimed(overlap_rows(claimed), pairs, owners.of(column[pairs]).astype(np.int64)))
    found = np.concatenate(rows)
    return overlap_rows(np.column_stack([ids[found[:, :2]].astype(np.int64), found[:, 2:]]))


def _claimed(claims: np.ndarray, pairs: np.ndarray, objects: np.ndarray) -> np.ndarray:
    """Return the rows of `claims` on the two `objects` of each pair of fragments, by the rows of the fragments."""
    known, first, count = np.unique(claims[:, :2], axis=0, return_index=True, return_counts=True)
    entry = RowLookup(*known.T).find(*np.sort(objects, axis=1).T)
    pairs, entry = pairs[entry >= 0], entry[entry >= 0]
    which = np.repeat(np.arange(len(entry)), count[entry])
    step = np.arange(len(which)) - np.repeat(np.cumsum(count[entry]) - count[entry], count[entry])
    return np.column_stack([pairs[which], claims[first[entry][which] + step][:, 2:]])


def merged_faces(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Add up the faces of disjoint blocks, and turn their labels (row + 1) into rows."""
    total = RowSum(6)
    for faces in parts:
        total.add(faces)
    return total.rows() - (1, 1, 0, 0, 0, 0)
