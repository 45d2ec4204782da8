"""Split segments into their connected pieces and drop specks while a volume is written, block by block."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ffn.assembly.carried import Tables, overlap_rows
from ffn.assembly.unionfind import connected_roots
from ffn.contingency import RowLookup
from ffn.geometry import ZYX, Box, zyx
from ffn.io.create import create_volume
from ffn.io.volume import Placement
from ffn.progress import track

log = logging.getLogger(__name__)

NO_PART = np.empty((0, 2), np.int64)


@dataclass(frozen=True)
class Pieces:
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
    tables: Tables,
    min_voxels: int,
    block_size_zyx: ZYX,
) -> None:
    """Write labels so that every id is one connected component of at least `min_voxels` voxels.

    The labels are read twice. Memory grows with the block, with one section of the volume, and with the number of
    pieces in all blocks. The result does not depend on the block size.

    Parameters
    ----------
    out_spec : str
        ``FILE.h5:DATASET``, uint64.
    placement : Placement
        Box, voxel size and provenance of the volume.
    read : function
        Returns the labels of a block; 0 is background.
    tables : dict of str to int64 ndarray
        ``origins`` and ``overlaps``, as in `ffn.assembly.carried.carried_tables`. An origin goes with the component at
        its seed, else with the largest. An overlap is repeated for all components of its objects, because what touches
        decides. ``components`` (id, object) is added: the components of every object that has several.
    min_voxels : int
        Smaller components become background.
    block_size_zyx : tuple of int
        Voxels read at a time.
    """
    blocks = list(placement.box.blocks(block_size_zyx))
    origins = tables.get("origins", np.empty((0, 6), np.int64))
    pieces = _scan(placement.box, blocks, read, origins[:, 1:4])
    ids = component_ids(pieces, min_voxels)
    kept = _kept(pieces, ids)
    carried = {
        "origins": _origins(origins, ids, pieces, kept),
        "overlaps": _overlaps(tables["overlaps"], kept),
        "components": kept[np.isin(kept[:, 1], kept[:, 1][_repeats(kept[:, 1])])],
    }
    number = 0
    with create_volume(
        out_spec, np.uint64, placement, {name: carried[name] for name in (*tables, "components")}
    ) as out:
        for block in track(blocks, len(blocks), "write"):
            labelled = _label(read(block))
            num = int(labelled.max(initial=0))
            out.write(block, np.append(0, ids[number : number + num])[labelled].astype(np.uint64))
            number += num
    dropped = len(np.unique(connected_roots(len(ids), pieces.joins)[ids == 0]))
    counts = (len(np.unique(pieces.objects)), len(kept), dropped, min_voxels)
    log.info("%d objects: %d connected components; %d with fewer than %d voxels dropped", *counts)


def component_ids(pieces: Pieces, min_voxels: int) -> np.ndarray:
    """Choose the id of every piece.

    Parameters
    ----------
    pieces : Pieces
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


def _label(labels: np.ndarray) -> np.ndarray:
    """Return the connected pieces of a block, numbered from 1 in the order of their first voxels; faces connect."""
    from skimage.measure import label

    ids, compact = np.unique(labels, return_inverse=True)
    compact = compact.reshape(labels.shape) + int(ids[0] > 0)  # 0 is background, also where there is none
    return label(compact, background=0, connectivity=1)


def _scan(box: Box, blocks: list[Box], read: Callable[[Box], np.ndarray], seeds: np.ndarray) -> Pieces:
    """Find the pieces of all blocks, and which of them touch across the borders of blocks."""
    total = 0
    objects, voxels, first = ([np.empty(0, np.int64)] for _ in range(3))
    joins, at_seeds = [NO_PART], np.full(len(seeds), -1)
    faces: dict[tuple[int, ZYX], tuple[np.ndarray, np.ndarray]] = {}  # by axis and corner of the block behind
    for block in track(blocks, len(blocks), "components"):
        labels = read(block)
        labelled = _label(labels)
        numbers = np.where(labelled > 0, labelled + (total - 1), -1)
        pieces, where, counts = np.unique(labelled, return_index=True, return_counts=True)
        where, counts = where[pieces > 0], counts[pieces > 0]
        objects.append(labels.ravel()[where].astype(np.int64))
        voxels.append(counts)
        places = np.stack(np.unravel_index(where, labels.shape), axis=1) + np.subtract(block.start, box.start)
        first.append(np.ravel_multi_index(tuple(places.T), box.shape).astype(np.int64))
        joins += _joins(block, labels, numbers, faces)
        inside = ((seeds >= block.start) & (seeds < block.stop)).all(axis=1)
        at_seeds[inside] = numbers[tuple((seeds[inside] - block.start).T)]
        total += len(where)
    return Pieces(
        objects=np.concatenate(objects),
        voxels=np.concatenate(voxels),
        first=np.concatenate(first),
        joins=np.unique(np.concatenate(joins), axis=0),
        at_seeds=at_seeds,
    )


def _joins(
    block: Box, labels: np.ndarray, numbers: np.ndarray, faces: dict[tuple[int, ZYX], tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Return the pieces that continue in blocks before this one; remember its faces for those behind it."""
    found = []
    for axis in range(3):
        lower, upper = np.moveaxis(labels, axis, 0)[0], np.moveaxis(labels, axis, 0)[-1]
        before = faces.pop((axis, block.start), None)
        if before is not None:
            same = (before[0] == lower) & (lower != 0)
            pairs = np.stack([before[1][same], np.moveaxis(numbers, axis, 0)[0][same]], axis=1)
            found.append(np.unique(pairs, axis=0))
        corner = zyx(block.stop[k] if k == axis else block.start[k] for k in range(3))
        faces[axis, corner] = upper.copy(), np.moveaxis(numbers, axis, 0)[-1].copy()
    return found


def _kept(pieces: Pieces, ids: np.ndarray) -> np.ndarray:
    """Return id and object of every component that remains: int64 (N, 2), ascending."""
    return np.unique(np.stack([ids, pieces.objects], axis=1)[ids > 0], axis=0)


def _repeats(values: np.ndarray) -> np.ndarray:
    """Whether each value occurs more than once."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return counts[index] > 1


def _origins(origins: np.ndarray, ids: np.ndarray, pieces: Pieces, kept: np.ndarray) -> np.ndarray:
    """Give each origin the id of the component at its seed, else of the largest; drop those of which none is left."""
    piece = pieces.at_seeds
    hit = piece >= 0
    hit[hit] = (pieces.objects[piece[hit]] == origins[hit, 0]) & (ids[piece[hit]] > 0)
    named = origins.copy()
    named[hit, 0] = ids[piece[hit]]
    named = named[np.isin(named[:, 0], kept[:, 0])]
    return named[np.lexsort(named.T[::-1])]


def _overlaps(claims: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Repeat the rows of ``overlaps`` for all components of their objects."""
    by_object = kept[np.argsort(kept[:, 1], kind="stable")]
    owners, start, count = np.unique(by_object[:, 1], return_index=True, return_counts=True)
    lookup = RowLookup(owners)
    for side in (0, 1):
        entry = lookup.find(claims[:, side])
        claims, entry = claims[entry >= 0], entry[entry >= 0]
        which = np.repeat(np.arange(len(entry)), count[entry])
        step = np.arange(len(which)) - np.repeat(np.cumsum(count[entry]) - count[entry], count[entry])
        claims = claims[which]
        claims[:, side] = by_object[start[entry][which] + step, 0]
    return overlap_rows(claims)
