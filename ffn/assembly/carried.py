"""Carry the tables that flood filling wrote for each subvolume over to the ids of the whole volume."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ffn.assembly.nodes import Nodes
from ffn.assembly.places import FIRST, OVERLAPS, Places
from ffn.assembly.stacked import Stacked
from ffn.assembly.tiling import Tiling
from ffn.contingency import add_up
from ffn.errors import VolumeError
from ffn.geometry import ZYX, VoxelSize, cell_shape
from ffn.io.open import read_table
from ffn.io.scratch import ScratchRows, Table, sort_rows


def tables_of(
    spec: str, tiling: Tiling, index: int, voxel_size_zyx_nm: VoxelSize, ids: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the tables of a subvolume, as it wrote them."""
    tables = {}
    for name, num_ids in (("overlaps", 2), ("origins", 1)):
        rows = read_rows(spec, name, 6)
        rows = np.empty((0, 6), np.int64) if rows is None else rows
        _require_held(np.setdiff1d(rows[:, :num_ids].astype(np.uint64), ids), spec, name)
        tables[name] = rows
    overlaps = tables["overlaps"]
    tables["overlaps"] = overlaps[_in_core(overlaps[:, 2:5], tiling, index, cell_shape(voxel_size_zyx_nm))]
    return tables


def carried_tables(
    stacked: Stacked, nodes: Nodes, numbers: np.ndarray, places: Places, folder: Path | None = None
) -> dict[str, Table]:
    """Return the tables that are stored with a reconciled volume."""

    def named(subvolumes: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return numbers[nodes.find(subvolumes, ids)].astype(np.int64)

    def claim(*columns: np.ndarray) -> None:
        rows = overlap_rows(np.column_stack(columns))
        claims.append(np.column_stack([places.of(rows[:, 2:5]), rows]))

    claims, origins = ScratchRows((7,), np.int64, folder), ScratchRows((6,), np.int64, folder)
    for first, rows in stacked.batches("claims"):
        claim(named(first, rows[:, 1]), named(rows[:, 0], rows[:, 2]), rows[:, 3:])
    for own, rows in stacked.batches("overlaps"):
        claim(named(own, rows[:, 0]), named(own, rows[:, 1]), rows[:, 2:])
    for own, rows in stacked.batches("origins"):
        ids = named(own, rows[:, 0])
        origins.append(np.column_stack([ids, rows[:, 1:]])[ids > 0])
    overlaps = sort_rows(claims, lambda rows: add_up(rows)[:, 1:], folder)
    return {"origins": sort_rows(origins, _sorted, folder), OVERLAPS: overlaps, FIRST: places.first(overlaps)}


def _in_core(cells: np.ndarray, tiling: Tiling, index: int, shape_zyx: ZYX) -> np.ndarray:
    """Whether the middle of each cell, moved into the hull, lies in the core of a subvolume."""
    hull, core = tiling.hull, tiling.core(index)
    middle = np.clip(cells + np.array(shape_zyx) // 2, hull.start, np.array(hull.stop) - 1)
    return core.holds(middle)


def read_rows(spec: str, name: str, num_columns: int) -> np.ndarray | None:
    """Return the table `name` of a volume's file, or None if there is none."""
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


def overlap_rows(claims: np.ndarray) -> np.ndarray:
    """Add up the claims of different objects by pair and cell."""
    a, b = claims[:, 0], claims[:, 1]
    rows = (a != b) & (a != 0) & (b != 0)
    return add_up(np.column_stack([np.minimum(a, b), np.maximum(a, b), claims[:, 2:]])[rows])


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T[::-1])]
