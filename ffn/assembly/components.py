"""Connected components: of a graph, of the voxels in the blocks of a volume, and of segments.

The last are split into their connected pieces, without specks, while a volume is written, block by block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.assembly.contacts import COMPONENTS, ORIGINS, OVERLAPS
from ffn.config import PART_ZYX
from ffn.geometry import ZYX, Box, zyx
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, blocks_of, map_blocks, reduce_step
from ffn.io.scratch import ScratchRows, Table, Tables, folder_beside, parts_of, sort_rows
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement

NO_ROWS = np.empty((0, 2), np.int64)


class Forest:
    """Connected components of a graph with nodes from 0, whose edges arrive a part at a time and are not kept."""

    def __init__(self, num_nodes: int) -> None:
        self._parents = np.arange(num_nodes)  # in the same component, and never larger than the node

    def join(self, edges: np.ndarray) -> None:
        """Join pairs of nodes: int array of shape (E, 2), in any order."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        edges = np.asarray(edges, np.int64).reshape(-1, 2)
        nodes, ends = np.unique(self._roots_of(edges), return_inverse=True)
        a, b = ends.reshape(-1, 2).T
        graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(len(nodes), len(nodes)))
        _, component = connected_components(graph, directed=False)
        self._parents[nodes] = nodes[np.unique(component, return_index=True)[1]][component]

    def roots(self) -> np.ndarray:
        """Return the smallest node of each node's component: int64 of shape (num_nodes,)."""
        while not np.array_equal(above := self._parents[self._parents], self._parents):
            self._parents = above
        return self._parents

    def _roots_of(self, nodes: np.ndarray) -> np.ndarray:
        above = self._parents[nodes]
        while not np.array_equal(above, nodes):
            nodes, above = above, self._parents[above]
        return nodes


def connected_roots(num_nodes: int, edges: np.ndarray) -> np.ndarray:
    """Return the smallest node of each node's component (int64); `edges` (E, 2) are pairs of nodes, in any order.

    Examples
    --------
    >>> connected_roots(4, np.array([[3, 1]])).tolist()
    [0, 1, 2, 1]
    """
    forest = Forest(num_nodes)
    forest.join(edges)
    return forest.roots()


def label_pieces(labels: np.ndarray) -> np.ndarray:
    """Return the connected pieces of a block, numbered from 1 in the order of their first voxels; faces connect."""
    from skimage.measure import label

    return label(labels.astype(np.int64), background=0, connectivity=1)


class LabelledPart(NamedTuple):
    """A part of a block, and its pieces, whose numbers in the block begin with `first`; -1 is none.

    `objects`, `voxels` and `starts` have the id, the size and the flat index in the part of the first voxel of each
    piece. `links` (piece, flat index of a voxel in the volume) names a voxel of every contact with other parts: with
    the piece that it belongs to, and with those before it that go on there. So neighbours agree on the voxel without
    knowing each other's pieces.
    """

    box: Box
    pieces: np.ndarray
    first: int
    objects: np.ndarray
    voxels: np.ndarray
    starts: np.ndarray
    links: np.ndarray


def label_parts(block: Box, volume: Box, part_zyx: ZYX, read: Callable[[Box], np.ndarray]) -> Iterator[LabelledPart]:
    """Find the pieces of a block, part by part."""
    first = 0
    for part in block.blocks(part_zyx):
        outer = Box(part.start, zyx(n + 1 for n in part.stop)).intersect(volume)
        around = read(outer)
        labels = around[part.slices(outer.start)].ravel()
        labelled = label_pieces(labels.reshape(part.shape))
        voxels = np.bincount(labelled.ravel())[1:]
        starts = np.empty(len(voxels) + 1, np.int64)
        starts[labelled.ravel()[::-1]] = np.arange(labelled.size)[::-1]  # the first voxel is the last to be assigned
        pieces = np.where(labelled > 0, labelled + (first - 1), -1)
        links = [pairs[pairs[:, 0] >= 0] for pairs in _links(part, volume, around, pieces)]
        objects = labels[starts[1:]]
        yield LabelledPart(part, pieces, first, objects, voxels, starts[1:], np.concatenate([NO_ROWS, *links]))
        first += len(voxels)


def pieces_of_block(block: Box, volume: Box, part_zyx: ZYX, read: Callable[[Box], np.ndarray]) -> dict[str, np.ndarray]:
    """Find the pieces of a block.

    The result has ``objects`` (id of each piece), ``voxels`` and ``first`` (flat index of its first voxel in the
    volume), and ``links`` of all parts.
    """
    objects, voxels, first, links = ([] for _ in range(4))
    for part in label_parts(block, volume, part_zyx, read):
        objects.append(part.objects.astype(np.int64))
        voxels.append(part.voxels)
        first.append(_flat(np.stack(np.unravel_index(part.starts, part.box.shape), axis=1), part.box, volume))
        links.append(part.links)
    columns = {"objects": objects, "voxels": voxels, "first": first, "links": links}
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _links(part: Box, volume: Box, around: np.ndarray, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield ``links`` of the first face of a part, and of that of the part behind it, along each axis."""
    for axis in range(3):
        for is_behind, plane in ((False, 0), (True, part.shape[axis])):
            if not volume.start[axis] < part.start[axis] + plane < volume.stop[axis]:
                continue
            face, before = (
                tuple(slice(at, at + 1) if k == axis else slice(n) for k, n in enumerate(part.shape))
                for at in (plane, plane - 1)
            )
            contacts = label_pieces(around[face])
            goes_on = contacts > 0
            if is_behind:
                goes_on &= around[face] == around[before]
            _, where = np.unique(contacts, return_index=True)
            places = np.stack(np.unravel_index(where, contacts.shape), axis=1)
            places[:, axis] += plane
            voxels = _flat(places, part, volume)
            if contacts.min(initial=1) > 0:
                voxels = np.append(0, voxels)  # there is no background
            piece = numbers[before if is_behind else face][goes_on]
            yield np.unique(np.stack([piece, voxels[contacts[goes_on]]], axis=1), axis=0)


def same_voxel(links: np.ndarray) -> np.ndarray:
    """Return the pairs of pieces that name the same voxel, from rows of voxel and piece."""
    voxels, pieces = links[np.argsort(links[:, 0], kind="stable")].T
    return np.stack([pieces[:-1], pieces[1:]], axis=1)[voxels[1:] == voxels[:-1]]


def _flat(places: np.ndarray, part: Box, volume: Box) -> np.ndarray:
    """Return the flat index (int64) in the volume of voxels (N, 3) of a part."""
    indices = (places + np.subtract(part.start, volume.start)).T
    return np.ravel_multi_index(tuple(indices), volume.shape).astype(np.int64)


log = logging.getLogger(__name__)

LABEL = "label"  # step before the blocks
TABLES = (ORIGINS, OVERLAPS, COMPONENTS)
FIRST_OVERLAP = "first_overlap"  # a table in stores of earlier versions
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
    out: str, placement: Placement, labels: Labels, min_voxels: int, key: Mapping[str, Any], job: Job = WHOLE
) -> None:
    """Write labels so that every id is one connected component of at least `min_voxels` voxels.

    The labels are read twice: the step `LABEL` finds the pieces of each block and ends with their ids, then the blocks
    are written. The result does not depend on blocks or jobs.

    An origin goes with the largest component. An overlap remains one of objects, see `ffn.assembly.contacts.Objects`.
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
