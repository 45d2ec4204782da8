"""Join overlapping subvolumes into one volume with global ids, block by block."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.carried import carried_tables
from ffn.assembly.nodes import Nodes, scan
from ffn.assembly.overlap import best_of_each_other, parts_inside
from ffn.assembly.pool import VolumePool
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, count_pairs, merge_tables
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement, Volume, require_labels, require_other_file, require_same_voxel_size, voxel_size_of
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Joins:
    """What the overlaps of subvolumes say about their nodes.

    Parameters
    ----------
    pairs : int64 ndarray of shape (E, 2)
        Nodes that are one object.
    num_inside : int
        How many of the pairs only `parts_inside` has found.
    shared : ContingencyTable
        Voxels by the two nodes that claim them, joined or not.
    """

    pairs: np.ndarray
    num_inside: int
    shared: ContingencyTable


def reconcile(specs: Sequence[str], out_spec: str, config: ReconcileConfig) -> None:
    """Write the union of `specs` with ids that mean the same object everywhere.

    The result depends on the voxels only: not on the order of `specs`, nor on the ids inside a subvolume, nor on the
    size of blocks. Objects are numbered by the first subvolume that holds them, and in it by their first voxel.

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes of one tiling (`ffn.geometry.tile`), with their places.
    out_spec : str
        ``FILE.h5:DATASET``, uint64. Voxels of an overlap come from the subvolume whose core they are in. Beside it
        are the tables of `carried_tables`.
    config : ReconcileConfig
        What counts as a match, block size.

    Raises
    ------
    VolumeError
        If there is no subvolume, one is listed twice, they do not tile a box, their voxels differ in size, the output
        would replace one of them, or a table beside one names an id that it does not hold.
    """
    require_other_file(out_spec, *specs)
    tiling, specs, voxel_size = open_tiling(specs)
    with VolumePool() as pool:
        scans = track(enumerate(specs), len(specs), "ids", "subvolume")
        nodes = Nodes.of([scan(pool.open(spec), tiling.core(index)) for index, spec in scans])
        joins = find_joins(tiling, specs, nodes, pool, config)
        roots = connected_roots(nodes.num_nodes, joins.pairs)
        objects = np.unique(roots[nodes.in_core])
        numbers = np.where(np.isin(roots, objects), np.searchsorted(objects, roots) + 1, 0).astype(np.uint64)
        record = provenance("reconcile", config, subvolumes=len(specs), matches=len(joins.pairs))
        tables = carried_tables(specs, nodes, numbers, joins.shared)
        with create_volume(out_spec, np.uint64, Placement(tiling.hull, voxel_size, record), tables) as writer:
            blocks = list(tiling.hull.blocks(config.block_size_zyx))
            for block in track(blocks, len(blocks), "write"):
                writer.write(block, _renumbered(block, tiling, specs, nodes, numbers, pool))
    counts = (len(specs), nodes.num_nodes, len(joins.pairs), joins.num_inside, len(objects))
    log.info("%d subvolumes with %d ids, %d matches (%d of parts inside): %d objects", *counts)
    log.info("the object of most parts has %d", np.bincount(roots).max(initial=0))


def open_tiling(specs: Sequence[str]) -> tuple[Tiling, list[str], VoxelSize]:
    """Check the places of subvolumes.

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes, in any order.

    Returns
    -------
    tuple of Tiling, list of str and tuple of float
        The tiling, `specs` in its order, and the voxel size, zyx in nm.

    Raises
    ------
    VolumeError
        As `reconcile`.
    """
    places: dict[Box, str] = {}
    first: Volume | None = None
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in places:
                raise VolumeError(f"{spec}: covers the same box {volume.box} as {places[volume.box]}, expected it once")
            places[volume.box] = spec
            if first is None or first.voxel_size_zyx_nm is None:  # one that does not say its size takes that of others
                first = volume
            require_same_voxel_size(volume, first)
    if first is None:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(places))
    return tiling, [places[tiling.box(index)] for index in range(tiling.num_boxes)], voxel_size_of(first)


def find_joins(tiling: Tiling, specs: Sequence[str], nodes: Nodes, pool: VolumePool, config: ReconcileConfig) -> Joins:
    """Match the ids of all subvolumes that overlap.

    Parameters
    ----------
    tiling : Tiling
        Where the subvolumes lie.
    specs : sequence of str
        Their files, in its order.
    nodes : Nodes
        Their ids.
    pool : VolumePool
        Opens the files.
    config : ReconcileConfig
        What counts as a match, block size.

    Returns
    -------
    Joins
        In the order of the overlaps.
    """
    overlaps = list(tiling.overlaps())
    pairs, shared, num_inside = [np.empty((0, 2), np.int64)], [], 0
    for first, second in track(overlaps, len(overlaps), "match", "overlap"):
        box = tiling.box(first).intersect(tiling.box(second))
        table = _compared(pool, specs[first], specs[second], box, config)
        a, b = nodes.find(first, table.a), nodes.find(second, table.b)
        best = best_of_each_other(table, config)
        inside = parts_inside(table, (nodes.voxels[a], nodes.voxels[b]), config) & ~best
        pairs.append(np.stack([a, b], axis=1)[best | inside])
        num_inside += int(inside.sum())
        shared.append(ContingencyTable(a, b, table.voxels))
    return Joins(np.concatenate(pairs), num_inside, merge_tables(shared))


def _compared(pool: VolumePool, first: str, second: str, box: Box, config: ReconcileConfig) -> ContingencyTable:
    """Count the voxels of `box` that two subvolumes have segmented by their ids."""
    blocks = box.blocks(config.block_size_zyx)
    tables = (count_pairs(pool.open(first).read(block), pool.open(second).read(block)) for block in blocks)
    return merge_tables(tables).foreground()


def _renumbered(
    block: Box, tiling: Tiling, specs: Sequence[str], nodes: Nodes, numbers: np.ndarray, pool: VolumePool
) -> np.ndarray:
    """Put the global ids of a block together from the cores that it meets."""
    voxels = np.zeros(block.shape, np.uint64)
    for index, part in tiling.cores_in(block):
        ids = pool.open(specs[index]).read(part)
        labelled = ids != 0
        voxels[part.slices(block.start)][labelled] = numbers[nodes.find(index, ids[labelled])]
    return voxels
