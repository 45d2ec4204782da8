"""Split segments into their connected pieces and drop specks while a volume is written, block by block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ffn.assembly.pieces import NO_PART, label_pieces, pieces_of_block
from ffn.assembly.unionfind import connected_roots
from ffn.geometry import ZYX, Box, divide_up
from ffn.io.blocks import WHOLE, Job, Learnt, Writers, blocks_of, write_blocks
from ffn.io.create import volume_name
from ffn.io.scratch import ScratchRows, Table, parts_of, sort_rows
from ffn.io.shards import Shards
from ffn.io.steps import StepTables, learn_tables
from ffn.io.volume import Placement, file_of

log = logging.getLogger(__name__)

LABEL = "label"  # step before the blocks
TABLES = ("origins", "overlaps", "components")


@dataclass(frozen=True)
class ConnectedPieces:
    """Connected pieces of all blocks, numbered in the order of the blocks; a component is made of joined pieces.

    Parameters
    ----------
    objects : int64 ndarray of shape (N,)
        Id of each piece.
    voxels : int64 ndarray of shape (N,)
        Size of each piece.
    first : int64 ndarray of shape (N,)
        Flat index of the piece's first voxel in the volume.
    joins : int64 ndarray of shape (E, 2)
        Pieces with a common face.
    at_seeds : int64 ndarray of shape (S,)
        Piece at each seed, -1 for none.
    """

    objects: np.ndarray
    voxels: np.ndarray
    first: np.ndarray
    joins: np.ndarray
    at_seeds: np.ndarray


def write_components(
    out_spec: str,
    placement: Placement,
    read: Callable[[Box], np.ndarray],
    tables: StepTables,
    min_voxels: int,
    block_size_zyx: ZYX,
    made_of: Mapping[str, Any],
    job: Job = WHOLE,
) -> None:
    """Write labels so that every id is one connected component of at least `min_voxels` voxels.

    The labels are read twice: the step `LABEL` finds the pieces of each block and ends with their ids, then the blocks
    are written. The result does not depend on blocks or jobs.

    Parameters
    ----------
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64.
    placement : Placement
        Box, voxel size and provenance of the volume.
    read : function
        Returns the labels of a block; 0 is background.
    tables : StepTables
        ``origins`` and ``overlaps``, as in `ffn.assembly.carried.carried_tables`, in the form of `with_seeds`. An
        origin goes with the component at its seed, else with the largest. An overlap remains one of objects, see
        `Objects`; what touches decides which of their components it concerns. ``components`` (id, object) is added: the
        components of every object that has several.
    min_voxels : int
        Smaller components become background.
    block_size_zyx : tuple of int
        Voxels read at a time, the same in all jobs.
    made_of : dict
        What the labels depend on, see `ffn.io.blocks.write_blocks`.
    job : Job
        What to do, see `ffn.io.steps`.
    """
    path, name, blocks = file_of(out_spec), volume_name(out_spec), component_blocks(placement)
    number = {block.start: index for index, block in enumerate(blocks)}
    made_of = {**made_of, "min_voxels": min_voxels, "part": block_size_zyx}

    def label(block: Box) -> Learnt:
        seeds = _rows_of(tables, "seeds", "first_seed", number[block.start])
        return pieces_of_block(block, placement.box, block_size_zyx, read, seeds)

    def combine(learnt: Iterable[Learnt]) -> dict[str, np.ndarray]:
        return _joined(list(learnt), tables, min_voxels)

    labelled = learn_tables(path, LABEL, blocks, label, combine, made_of, job)
    if labelled is None:
        return

    def work(block: Box, out: Writers) -> None:
        ids, first = np.append(0, _rows_of(labelled, "ids", "first", number[block.start])).astype(np.uint64), 0
        for part in block.blocks(block_size_zyx):
            pieces = label_pieces(read(part))
            out[name].write(part, ids[np.where(pieces > 0, pieces + first, 0)])
            first += int(pieces.max(initial=0))

    made_of["label"] = labelled.digest
    carried = {table: partial(_whole, labelled, table) for table in TABLES}  # only the end reads them
    write_blocks(path, {name: np.uint64}, placement, work, made_of, job, carried)


def _whole(tables: StepTables, name: str, _: object) -> np.ndarray:
    return tables.read(name)


def component_blocks(placement: Placement) -> list[Box]:
    """Return the blocks that `write_components` works on."""
    return blocks_of(placement, {"": np.uint64})


def with_seeds(tables: Mapping[str, Table], blocks: Sequence[Box], folder: Path | None = None) -> dict[str, Table]:
    """Return `tables` with the ``seeds`` of ``origins``, so that a block finds its own: row in ``origins``, z, y, x.

    They are sorted by block, and ``first_seed`` is the first of each block. They wait in `folder`, see `sort_rows`.
    """
    shards = Shards(Box.hull(blocks), blocks[0].shape)
    grid = divide_up(shards.box.shape, shards.shape_zyx)
    found, counts, start = ScratchRows((5,), np.int64, folder), np.zeros(len(blocks), np.int64), 0
    for origins in parts_of(tables["origins"]):
        seeds = origins[:, 1:4]
        inside = np.flatnonzero(shards.box.holds(seeds))
        places = (seeds[inside] - shards.box.start) // shards.shape_zyx
        numbers = np.ravel_multi_index(tuple(places.T), grid)
        found.append(np.column_stack([numbers, inside + start, seeds[inside]]))
        counts += np.bincount(numbers, minlength=len(blocks))
        start += len(origins)
    by_block = sort_rows(found, lambda rows: rows[np.argsort(rows[:, 0], kind="stable"), 1:], folder)
    return {**tables, "seeds": by_block, "first_seed": np.append(0, np.cumsum(counts))}


def _rows_of(tables: StepTables, name: str, first: str, index: int) -> np.ndarray:
    """Return the rows of a table that belong to a block."""
    start, stop = tables.read(first, index, index + 2).tolist()
    return tables.read(name, start, stop)


def component_ids(pieces: ConnectedPieces, min_voxels: int) -> np.ndarray:
    """Choose the id of every piece.

    Parameters
    ----------
    pieces : ConnectedPieces
        In any order.
    min_voxels : int
        Smaller components get 0.

    Returns
    -------
    int64 ndarray of shape (N,)
        The largest component of an object keeps its id; of equal ones, the one with the first voxel. All others get new
        ids after the largest, in order of object and first voxel.
    """
    if not len(pieces.objects):
        return pieces.objects
    _, component = np.unique(connected_roots(len(pieces.objects), pieces.joins), return_inverse=True)
    voxels = np.bincount(component, pieces.voxels).astype(np.int64)
    first = np.full(len(voxels), np.iinfo(np.int64).max)
    np.minimum.at(first, component, pieces.first)
    owner = np.zeros(len(voxels), np.int64)
    owner[component] = pieces.objects
    order = np.lexsort((first, -voxels, owner))
    largest = np.zeros(len(voxels), bool)
    largest[order[np.unique(owner[order], return_index=True)[1]]] = True
    remains = voxels >= min_voxels
    ids = np.where(largest & remains, owner, 0)
    new = np.flatnonzero(remains & ~largest)
    new = new[np.lexsort((first[new], owner[new]))]
    ids[new] = owner.max() + np.arange(1, len(new) + 1)
    return ids[component]


def _joined(learnt: Sequence[Learnt], tables: StepTables, min_voxels: int) -> dict[str, np.ndarray]:
    """Join the pieces of all blocks; return their ``ids``, the ``first`` of each block, and the tables of the store."""
    first = np.cumsum([0, *(len(each["objects"]) for each in learnt)])
    origins, overlaps = tables.read("origins"), tables.read("overlaps")
    links, at_seeds = [NO_PART], np.full(len(origins), -1)
    for start, each in zip(first.tolist(), learnt, strict=False):
        links.append(each["links"] + (start, 0))
        at_seeds[each["seeds"][:, 0]] = each["seeds"][:, 1] + start
    by_voxel = np.concatenate(links)
    by_voxel = by_voxel[np.argsort(by_voxel[:, 1], kind="stable")]
    same = by_voxel[1:, 1] == by_voxel[:-1, 1]
    pieces = ConnectedPieces(
        objects=np.concatenate([each["objects"] for each in learnt]),
        voxels=np.concatenate([each["voxels"] for each in learnt]),
        first=np.concatenate([each["first"] for each in learnt]),
        joins=np.stack([by_voxel[:-1, 0], by_voxel[1:, 0]], axis=1)[same],
        at_seeds=at_seeds,
    )
    ids = component_ids(pieces, min_voxels)
    kept = _kept(pieces, ids)
    dropped = len(np.unique(connected_roots(len(ids), pieces.joins)[ids == 0]))
    counts = (len(np.unique(pieces.objects)), len(kept), dropped, min_voxels)
    log.info("%d objects: %d connected components; %d with fewer than %d voxels dropped", *counts)
    return {
        "ids": ids,
        "first": first,
        "origins": _origins(origins, ids, pieces, kept),
        "overlaps": overlaps[np.isin(overlaps[:, :2], kept[:, 1]).all(axis=1)],
        "components": kept[np.isin(kept[:, 1], kept[:, 1][_repeats(kept[:, 1])])],
    }


def _kept(pieces: ConnectedPieces, ids: np.ndarray) -> np.ndarray:
    """Return id and object of every component that remains: int64 (N, 2), ascending."""
    return np.unique(np.stack([ids, pieces.objects], axis=1)[ids > 0], axis=0)


def _repeats(values: np.ndarray) -> np.ndarray:
    """Whether each value occurs more than once."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[index] > 1


def _origins(origins: np.ndarray, ids: np.ndarray, pieces: ConnectedPieces, kept: np.ndarray) -> np.ndarray:
    """Give each origin the id of the component at its seed, else of the largest; drop those of which none is left."""
    piece = pieces.at_seeds
    hit = piece >= 0
    hit[hit] = (pieces.objects[piece[hit]] == origins[hit, 0]) & (ids[piece[hit]] > 0)
    named = origins.copy()
    named[hit, 0] = ids[piece[hit]]
    named = named[np.isin(named[:, 0], kept[:, 0])]
    return named[np.lexsort(named.T[::-1])]
