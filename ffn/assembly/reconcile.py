"""Join overlapping subvolumes into one volume with global ids."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.carried import carried_tables
from ffn.assembly.components import write_components
from ffn.assembly.nodes import Nodes, scan
from ffn.assembly.overlap import best_of_each_other, needed_voxels, parts_inside
from ffn.assembly.pool import VolumePool
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, add_up, find_runs, merge_tables
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape
from ffn.io.open import open_volume
from ffn.io.store_names import split_store
from ffn.io.volume import (
    Placement,
    Volume,
    require_labels,
    require_other_file,
    require_same_voxel_size,
    split_spec,
    voxel_size_of,
)
from ffn.options import add_options, from_arguments
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join overlapping subvolumes into one volume. Ids that match in the overlaps get the same global id."""
    text = "of ffn segment, NAME.zarr or FILE.h5:DATASET; the dataset is 'segmentation' unless given"
    parser.add_argument("subvolumes", nargs="+", metavar="VOLUME", help=text)
    parser.add_argument(
        "--out", required=True, metavar="VOLUME", help="uint64 segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    add_options(parser, ReconcileConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    specs = [
        spec if split_store(spec) or split_spec(spec)[1] else f"{spec}:segmentation" for spec in arguments.subvolumes
    ]
    reconcile(specs, arguments.out, from_arguments(ReconcileConfig, arguments))


@dataclass(frozen=True)
class Joins:
    """Matches found in the overlaps of subvolumes.

    Parameters
    ----------
    pairs : int64 ndarray of shape (E, 2)
        Nodes that are one object.
    num_inside : int
        Number of pairs that only `parts_inside` found.
    shared : int64 ndarray of shape (N, 6)
        Voxels counted by the two nodes that claim them, joined or not, and by cells: nodes, first voxel, voxels.
    """

    pairs: np.ndarray
    num_inside: int
    shared: np.ndarray


def reconcile(specs: Sequence[str], out_spec: str, config: ReconcileConfig) -> None:
    """Write all subvolumes as one volume in which an object has the same id everywhere.

    The result depends only on the voxels: not on the order of `specs`, the ids inside a subvolume, or the block size.
    Objects are numbered by the first subvolume that contains them, and within it by their first voxel.

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes of one tiling (`ffn.geometry.tile`).
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64. Voxels in an overlap come from the subvolume whose core they are
        in. It also gets the tables of `carried_tables`.
    config : ReconcileConfig
        Criteria of a match, block size.

    Raises
    ------
    VolumeError
        If there is no subvolume, a box occurs twice, the subvolumes do not tile a box, their voxel sizes differ, the
        output would overwrite one of them, or a table names an id that its subvolume lacks.
    """
    require_other_file(out_spec, *specs)
    tiling, specs, voxel_size = open_tiling(specs)
    with VolumePool() as pool:
        scans = track(enumerate(specs), len(specs), "ids", "subvolume")
        nodes = Nodes.of([scan(pool.open(spec), tiling.core(index)) for index, spec in scans])
        joins = find_joins(tiling, voxel_size, specs, nodes, pool, config)
        roots = connected_roots(nodes.num_nodes, joins.pairs)
        objects = np.unique(roots[nodes.in_core])
        numbers = np.where(np.isin(roots, objects), np.searchsorted(objects, roots) + 1, 0).astype(np.uint64)
        record = provenance("reconcile", config, subvolumes=len(specs), matches=len(joins.pairs))
        tables = carried_tables(specs, tiling, voxel_size, nodes, numbers, joins.shared)
        write_components(
            out_spec,
            Placement(tiling.hull, voxel_size, record),
            lambda block: _renumbered(block, tiling, specs, nodes, numbers, pool),
            tables,
            config.min_component_size,
            config.block_size_zyx,
        )
    counts = (len(specs), nodes.num_nodes, len(joins.pairs), joins.num_inside, len(objects))
    log.info("%d subvolumes with %d ids, %d matches (%d of them parts inside): %d objects", *counts)
    log.info("most parts of one object: %d", np.bincount(roots).max(initial=0))


def open_tiling(specs: Sequence[str]) -> tuple[Tiling, list[str], VoxelSize]:
    """Find the tiling that subvolumes form, and check it.

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes, in any order.

    Returns
    -------
    tuple of Tiling, list of str and tuple of float
        The tiling, `specs` in its order, and the voxel size (zyx, nm).

    Raises
    ------
    VolumeError
        If there is no subvolume, a box occurs twice, the subvolumes do not tile a box, or their voxel sizes differ.
    """
    places: dict[Box, str] = {}
    first: Volume | None = None
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in places:
                raise VolumeError(f"{spec}: covers the same box {volume.box} as {places[volume.box]}, expected it once")
            places[volume.box] = spec
            if first is None or first.voxel_size_zyx_nm is None:  # prefer a subvolume that declares its voxel size
                first = volume
            require_same_voxel_size(volume, first)
    if first is None:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(places))
    return tiling, [places[tiling.box(index)] for index in range(tiling.num_boxes)], voxel_size_of(first)


def find_joins(
    tiling: Tiling,
    voxel_size_zyx_nm: VoxelSize,
    specs: Sequence[str],
    nodes: Nodes,
    pool: VolumePool,
    config: ReconcileConfig,
) -> Joins:
    """Match the ids of all subvolumes that overlap.

    Parameters
    ----------
    tiling : Tiling
        Boxes of the subvolumes.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    specs : sequence of str
        Their files, in the order of the tiling.
    nodes : Nodes
        Their ids.
    pool : VolumePool
        Opens the files.
    config : ReconcileConfig
        Criteria of a match, block size.

    Returns
    -------
    Joins
        In the order of the overlaps.
    """
    overlaps = list(tiling.overlaps())
    pairs, shared, num_inside = [np.empty((0, 2), np.int64)], [np.empty((0, 6), np.int64)], 0
    cell = cell_shape(voxel_size_zyx_nm)
    for first, second in track(overlaps, len(overlaps), "match", "overlap"):
        box = tiling.box(first).intersect(tiling.box(second))
        claims = _compared(pool, specs[first], specs[second], box, cell, config)
        ids = claims[:, :2].astype(np.uint64)
        table = merge_tables([ContingencyTable(ids[:, 0], ids[:, 1], claims[:, 5])])
        a, b = nodes.find(first, table.a), nodes.find(second, table.b)
        voxels = nodes.voxels[a], nodes.voxels[b]
        share = min(n / side for n, side in zip(box.shape, tiling.box(first).shape, strict=True))
        best = best_of_each_other(table, needed_voxels(voxels, share, config), config)
        inside = parts_inside(table, voxels, config) & ~best
        pairs.append(np.stack([a, b], axis=1)[best | inside])
        num_inside += int(inside.sum())
        nodes_of = (nodes.find(index, claims[:, side]) for side, index in enumerate((first, second)))
        shared.append(np.column_stack([*nodes_of, claims[:, 2:]]))
    return Joins(np.concatenate(pairs), num_inside, add_up(np.concatenate(shared)))


def _compared(
    pool: VolumePool, first: str, second: str, box: Box, cell_zyx: ZYX, config: ReconcileConfig
) -> np.ndarray:
    """Count the pairs of ids in each cell of `box` where both subvolumes are segmented: rows as of ``overlaps``."""
    blocks = box.blocks(config.block_size_zyx)
    found = (count_in_cells(pool.open(first).read(b), pool.open(second).read(b), b.start, cell_zyx) for b in blocks)
    return add_up(np.concatenate(list(found)))


def count_in_cells(a: np.ndarray, b: np.ndarray, offset_zyx: ZYX, cell_zyx: ZYX) -> np.ndarray:
    """Count the voxels of every pair of ids in every cell.

    Parameters
    ----------
    a, b : integer ndarrays of one shape (Z, Y, X)
        Labels; voxels where one is 0 do not count.
    offset_zyx : tuple of int
        First voxel of both in the full volume.
    cell_zyx : tuple of int
        Shape of a cell.

    Returns
    -------
    int64 ndarray of shape (N, 6)
        Id in a, id in b, first voxel of the cell, voxels.
    """
    cells_along_x = np.broadcast_to((np.arange(a.shape[2]) + offset_zyx[2]) // cell_zyx[2], a.shape)
    starts, lengths = find_runs(a, b, cells_along_x, within_rows=True)
    ids = np.stack([a.ravel()[starts], b.ravel()[starts]], axis=1).astype(np.int64)
    cells = (np.stack(np.unravel_index(starts, a.shape), axis=1) + offset_zyx) // cell_zyx * cell_zyx
    return add_up(np.column_stack([ids, cells, lengths])[(ids != 0).all(axis=1)])


def _renumbered(
    block: Box, tiling: Tiling, specs: Sequence[str], nodes: Nodes, numbers: np.ndarray, pool: VolumePool
) -> np.ndarray:
    """Assemble the global ids of a block from the cores that it overlaps."""
    voxels = np.zeros(block.shape, np.uint64)
    for index, part in tiling.cores_in(block):
        ids = pool.open(specs[index]).read(part)
        labelled = ids != 0
        voxels[part.slices(block.start)][labelled] = numbers[nodes.find(index, ids[labelled])]
    return voxels
