"""Split segments into their connected pieces and drop specks while a volume is written, block by block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.assembly.connected import Forest, label_pieces, pieces_of_block, same_voxel
from ffn.assembly.tables import COMPONENTS, FIRST_OVERLAP, ORIGINS, OVERLAPS
from ffn.config import PART_ZYX
from ffn.geometry import Box
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, blocks_of, map_blocks, reduce_step
from ffn.io.scratch import ScratchRows, Table, Tables, folder_beside, parts_of, sort_rows
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement

log = logging.getLogger(__name__)

LABEL = "label"  # step before the blocks
TABLES = (ORIGINS, OVERLAPS, COMPONENTS)
MAX_VOXEL = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Components:
    """Connected components of objects."""

    objects: np.ndarray  # object of each component
    voxels: np.ndarray  # its size
    first: np.ndarray  # flat index of its first voxel in the volume

    @classmethod
    def of_pieces(cls, pieces: Components, numbers: np.ndarray) -> Components:
        """Return the components that `pieces` make together; `numbers` has the component of each, from 0."""
        num = int(numbers.max(initial=-1)) + 1
        objects, voxels, first = np.zeros(num, np.int64), np.zeros(num, np.int64), np.full(num, MAX_VOXEL)
        objects[numbers] = pieces.objects
        np.add.at(voxels, numbers, pieces.voxels)
        np.minimum.at(first, numbers, pieces.first)
        return cls(objects, voxels, first)


class Labels(NamedTuple):
    """Labels that are split: a function that returns those of a block, and ``origins`` and ``overlaps``."""

    read: Callable[[Box], np.ndarray]
    tables: Tables


def write_components(
    out: str,
    placement: Placement,
    labels: Labels,
    min_voxels: int,
    key: Mapping[str, Any],
    job: Job = WHOLE,
) -> None:
    """Write labels so that every id is one connected component of at least `min_voxels` voxels.

    The labels are read twice: the step `LABEL` finds the pieces of each block and ends with their ids, then the blocks
    are written. The result does not depend on blocks or jobs.

    An origin goes with the largest component. An overlap remains one of objects, see `ffn.assembly.tables.Objects`.
    """
    (read, tables), blocks = labels, blocks_of(placement, {MAIN: np.uint64})
    number = {block.start: index for index, block in enumerate(blocks)}
    key = {**key, "min_voxels": min_voxels, "part": PART_ZYX}

    def label(block: Box) -> Result:
        return pieces_of_block(block, placement.box, PART_ZYX, read)

    def combine(results: Iterable[Result]) -> dict[str, Table]:
        return _joined(results, tables, min_voxels, folder_beside(out))

    labelled = reduce_step(out, LABEL, blocks, label, combine, key, job)
    if labelled is None:
        return

    def work(block: Box, writers: Writers) -> None:
        start, stop = labelled.read("first", number[block.start], number[block.start] + 2).tolist()
        ids, first = np.append(0, labelled.read("ids", start, stop)).astype(np.uint64), 0
        for part in block.blocks(PART_ZYX):
            pieces = label_pieces(read(part))
            writers[MAIN].write(part, ids[np.where(pieces > 0, pieces + first, 0)])
            first += int(pieces.max(initial=0))

    key["label"] = labelled.digest
    at_end = {table: partial(_whole, labelled, table) for table in TABLES} | {FIRST_OVERLAP: no_table}
    map_blocks(out, {MAIN: np.uint64}, placement, work, key, job, at_end)


def _whole(tables: Tables, name: str, _: object) -> np.ndarray:
    return tables.read(name)


def no_table(_: object) -> None:
    """Let a store replace one with a table that this version does not write."""


def component_ids(components: Components, min_voxels: int) -> np.ndarray:
    """Choose the id (int64) of every component; those with fewer than `min_voxels` get 0.

    The largest component of an object keeps its id; of equal ones, the one with the first voxel. All others get new ids
    after the largest, in order of object and first voxel.
    """
    objects, voxels, first = components.objects, components.voxels, components.first
    order = np.lexsort((first, -voxels, objects))
    largest = np.zeros(len(objects), bool)
    largest[order[np.unique(objects[order], return_index=True)[1]]] = True
    remains = voxels >= min_voxels
    ids = np.where(largest & remains, objects, 0)
    new = np.flatnonzero(remains & ~largest)
    new = new[np.lexsort((first[new], objects[new]))]
    ids[new] = objects.max(initial=0) + np.arange(1, len(new) + 1)
    return ids


def _joined(results: Iterable[Result], tables: Tables, min_voxels: int, folder: Path | None) -> dict[str, Table]:
    """Join the pieces of all blocks; return their ``ids``, the ``first`` of each block, and the tables of the store."""
    columns, links = [ScratchRows((), np.int64, folder) for _ in range(3)], ScratchRows((2,), np.int64, folder)
    origins, overlaps, first = tables.read(ORIGINS), tables.read(OVERLAPS), [0]
    for each in results:
        start = first[-1]
        for column, name in zip(columns, ("objects", "voxels", "first"), strict=True):
            column.append(each[name])
        links.append(each["links"][:, ::-1] + (0, start))
        first.append(start + len(each["objects"]))
    numbers = _numbers(first[-1], sort_rows(links, same_voxel, folder))
    components = Components.of_pieces(Components(*(column[:] for column in columns)), numbers)
    ids = component_ids(components, min_voxels)
    kept = np.stack([ids, components.objects], axis=1)[ids > 0]
    counts = (len(np.unique(components.objects)), len(kept), len(ids) - len(kept), min_voxels)
    log.info("%d objects: %d connected components; %d with fewer than %d voxels dropped", *counts)
    several = kept[_repeats(kept[:, 1])]
    return {
        "ids": ids[numbers],
        "first": np.array(first),
        ORIGINS: origins[np.isin(origins[:, 0], kept[:, 1])],
        OVERLAPS: overlaps[np.isin(overlaps[:, :2], kept[:, 1]).all(axis=1)],
        COMPONENTS: several[np.argsort(several[:, 0])],
    }


def _numbers(num_pieces: int, pairs: ScratchRows) -> np.ndarray:
    """Return the component of each piece, int64 from 0."""
    forest = Forest(num_pieces)
    for some in parts_of(pairs):
        forest.join(some)
    roots = forest.roots()
    return (np.cumsum(roots == np.arange(num_pieces)) - 1)[roots]


def _repeats(values: np.ndarray) -> np.ndarray:
    """Whether each value occurs more than once."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[index] > 1
