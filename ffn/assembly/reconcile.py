"""Join overlapping subvolumes into one volume with global ids, block by block."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ffn.assembly.carried import carried_tables
from ffn.assembly.nodes import Nodes, scan
from ffn.assembly.overlap import matches
from ffn.assembly.pool import VolumePool
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, count_pairs, merge_tables
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.progress import track
from ffn.provenance import provenance
from ffn.volume import Placement, create_volume, open_volume, require_labels

log = logging.getLogger(__name__)


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
        If there is no subvolume, one is listed twice, or they do not tile a box.
    """
    tiling, specs, voxel_size = open_tiling(specs)
    with VolumePool() as pool:
        scans = track(enumerate(specs), len(specs), "ids", "subvolume")
        nodes = Nodes.of([scan(pool.open(spec), tiling.core(index)) for index, spec in scans])
        joins, shared = find_joins(tiling, specs, nodes, pool, config)
        roots = connected_roots(nodes.num_nodes, joins)
        objects = np.unique(roots[nodes.in_core])
        numbers = np.where(np.isin(roots, objects), np.searchsorted(objects, roots) + 1, 0).astype(np.uint64)
        record = provenance("reconcile", config, subvolumes=len(specs), matches=len(joins))
        tables = carried_tables(specs, nodes, numbers, shared)
        with create_volume(out_spec, np.uint64, Placement(tiling.hull, voxel_size, record), tables) as writer:
            blocks = list(tiling.hull.blocks(config.block_size_zyx))
            for block in track(blocks, len(blocks), "write"):
                writer.write(block, _renumbered(block, tiling, specs, nodes, numbers, pool))
    counts = (len(specs), nodes.num_nodes, len(joins), len(objects))
    log.info("%d subvolumes with %d ids, %d matches: %d objects", *counts)


def open_tiling(specs: Sequence[str]) -> tuple[Tiling, list[str], tuple[float, float, float]]:
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
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in places:
                raise VolumeError(f"{spec}: covers the same box {volume.box} as {places[volume.box]}, expected it once")
            places[volume.box] = spec
            voxel_size = volume.voxel_size_zyx_nm or (1.0, 1.0, 1.0)
    if not places:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(places))
    return tiling, [places[tiling.box(index)] for index in range(tiling.num_boxes)], voxel_size


def find_joins(
    tiling: Tiling, specs: Sequence[str], nodes: Nodes, pool: VolumePool, config: ReconcileConfig
) -> tuple[np.ndarray, ContingencyTable]:
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
    joins : int64 ndarray of shape (E, 2)
        Nodes that are one object.
    shared : ContingencyTable
        Voxels by the two nodes that claim them, joined or not.
    """
    overlaps = list(tiling.overlaps())
    joins = [np.empty((0, 2), np.int64)]
    shared = []
    for first, second in track(overlaps, len(overlaps), "match", "overlap"):
        box = tiling.box(first).intersect(tiling.box(second))
        table = _compared(pool, specs[first], specs[second], box, config)
        chosen = matches(table, config)
        joins.append(np.stack([nodes.find(first, chosen[:, 0]), nodes.find(second, chosen[:, 1])], axis=1))
        both = table.keep((table.truth != 0) & (table.segment != 0))
        shared.append(ContingencyTable(nodes.find(first, both.truth), nodes.find(second, both.segment), both.voxels))
    return np.concatenate(joins), merge_tables(shared)


def _compared(pool: VolumePool, first: str, second: str, box: Box, config: ReconcileConfig) -> ContingencyTable:
    """Count the voxels of `box` by their ids in two subvolumes."""
    blocks = box.blocks(config.block_size_zyx)
    return merge_tables(count_pairs(pool.open(first).read(block), pool.open(second).read(block)) for block in blocks)


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
