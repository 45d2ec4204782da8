"""Carry the tables that flood filling wrote for each subvolume over to the ids of the whole volume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ffn.assembly.nodes import Nodes
from ffn.contingency import ContingencyTable, merge_tables
from ffn.errors import VolumeError
from ffn.io.open import read_table

Tables = dict[str, np.ndarray]


def carried_tables(specs: Sequence[str], nodes: Nodes, numbers: np.ndarray, shared: ContingencyTable) -> Tables:
    """Return the tables that are stored with a reconciled volume.

    Parameters
    ----------
    specs : sequence of str
        Subvolumes, in the order of their tiling. Some may have no tables.
    nodes : Nodes
        Their ids.
    numbers : uint64 ndarray of shape (nodes.num_nodes,)
        Global id of each node; 0 where no voxel of it is left.
    shared : ContingencyTable
        Voxels of overlaps, counted by the nodes of the two subvolumes.

    Returns
    -------
    dict of str to int64 ndarray
        ``origins`` (id, seed z, y, x, FOVs, pass) has one row for each part of an object. ``overlaps`` (id, larger id,
        voxels) counts the voxels that two objects both claimed, within subvolumes and between them.

    Raises
    ------
    VolumeError
        If a table has another form, or names an id that its subvolume lacks.
    """
    a, b = numbers[shared.a.astype(np.int64)], numbers[shared.b.astype(np.int64)]
    claims = [claims_of(a, b, shared.voxels)]
    origins = [np.empty((0, 6), np.int64)]
    for index, spec in enumerate(specs):
        rows = read_rows(spec, "overlaps", 3)
        if rows is not None:
            _require_held(nodes.missing(index, rows[:, :2]), spec, "overlaps")
            ids_a, ids_b = (numbers[nodes.find(index, rows[:, side])] for side in (0, 1))
            claims.append(claims_of(ids_a, ids_b, rows[:, 2]))
        rows = read_rows(spec, "origins", 6)
        if rows is not None:
            _require_held(nodes.missing(index, rows[:, 0]), spec, "origins")
            ids = numbers[nodes.find(index, rows[:, 0])]
            origins.append(np.column_stack([ids.astype(np.int64), rows[:, 1:]])[ids > 0])
    return {"origins": _sorted(np.concatenate(origins)), "overlaps": overlap_rows(claims)}


def read_rows(spec: str, name: str, num_columns: int) -> np.ndarray | None:
    """Return the table `name` of a volume's file, or None if there is none.

    Raises
    ------
    VolumeError
        If it does not have `num_columns` columns.
    """
    rows = read_table(spec, name)
    if rows is not None and rows.shape[1:] != (num_columns,):
        raise VolumeError(
            f"{spec}: its table {name!r} has shape {rows.shape}, expected {num_columns} columns. "
            "Was it made by another version? Rerun ffn segment"
        )
    return rows


def _require_held(missing: np.ndarray, spec: str, name: str) -> None:
    if len(missing):
        raise VolumeError(
            f"{spec}: its table {name!r} names id {missing[0]}, which no voxel has, expected ids that occur. "
            "Were the voxels replaced? Rerun ffn segment"
        )


def overlap_rows(claims: Iterable[ContingencyTable]) -> np.ndarray:
    """Add up claims; return id, larger id and voxels as int64 (N, 3), each pair once, in ascending order."""
    total = merge_tables(claims)
    return np.column_stack([total.a, total.b, total.voxels]).astype(np.int64)


def claims_of(a: np.ndarray, b: np.ndarray, voxels: np.ndarray) -> ContingencyTable:
    """Return the pairs of different objects, the smaller id first. Rows keep their order, and pairs may repeat."""
    rows = (a != b) & (a != 0) & (b != 0)
    return ContingencyTable(np.minimum(a, b)[rows], np.maximum(a, b)[rows], voxels[rows])


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]
