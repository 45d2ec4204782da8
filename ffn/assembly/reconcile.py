"""Join overlapping subvolumes into one volume with global ids."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.assembly.carried import carried_tables
from ffn.assembly.components import LABEL, TABLES, component_blocks, with_seeds, write_components
from ffn.assembly.nodes import Nodes
from ffn.assembly.overlap import best_of_each_other, needed_voxels, parts_inside
from ffn.assembly.places import Places
from ffn.assembly.pool import VolumePool
from ffn.assembly.stacked import Stacked
from ffn.assembly.subvolumes import GlobalIds, Subvolumes, open_subvolumes
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import Forest
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, add_up
from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job, Learnt, add_job_options, job_of
from ffn.io.create import require_replaceable, volume_name
from ffn.io.scratch import Table, folder_beside
from ffn.io.steps import learn_tables
from ffn.io.store_names import split_store
from ffn.io.volume import Placement, file_of, require_other_file, split_spec
from ffn.options import add_options, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

TILING, MATCH = "tiling", "match"  # steps before that of components
STEPS = (TILING, MATCH, LABEL)
PART_ZYX = (128, 128, 128)  # voxels labelled at a time; jobs have to agree on it, so it is no option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join overlapping subvolumes into one volume. Ids that match in the overlaps get the same global id."""
    text = "of ffn segment, NAME.zarr or FILE.h5:DATASET; the dataset is 'segmentation' unless given"
    parser.add_argument("subvolumes", nargs="+", metavar="VOLUME", help=text)
    parser.add_argument(
        "--out", required=True, metavar="VOLUME", help="uint64 segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    add_job_options(parser, STEPS)
    add_options(parser, ReconcileConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    specs = [
        spec if split_store(spec) or split_spec(spec)[1] else f"{spec}:segmentation" for spec in arguments.subvolumes
    ]
    reconcile(specs, arguments.out, from_arguments(ReconcileConfig, arguments), job_of(arguments))


@dataclass(frozen=True)
class Joins:
    """Matches found in the overlaps of subvolumes."""

    pairs: np.ndarray  # nodes that are one object
    num_inside: int  # number of pairs that only `parts_inside` found


def reconcile(specs: Sequence[str], out_spec: str, config: ReconcileConfig, job: Job = WHOLE) -> None:
    """Write all subvolumes as one volume in which an object has the same id everywhere.

    The result depends only on the voxels: not on the order of `specs`, the ids inside a subvolume, blocks or jobs.
    Objects are numbered by the first subvolume that contains them, and within it by their first voxel.

    The step `TILING` opens all subvolumes. `MATCH` compares each with its neighbours and ends with the global ids.
    `LABEL` finds the connected pieces of these in each block and ends with the ids of components. Then the blocks are
    written. What ends `MATCH` needs memory for the ids of all subvolumes, what ends `LABEL` for the
    pieces of all blocks, and what works on blocks only for the rows of its block.

    Parameters
    ----------
    specs : sequence of str
        Segmented subvolumes of one tiling (`ffn.geometry.tile`).
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64. Voxels in an overlap come from the subvolume whose core they are
        in. It also gets the tables of `carried_tables`.
    config : ReconcileConfig
        Criteria of a match, block size.
    job : Job
        Which subvolumes or blocks to work on, see `ffn.io.steps`.

    Raises
    ------
    VolumeError
        If there is no subvolume, a box occurs twice, the subvolumes do not tile a box, their voxel sizes differ, the
        output would overwrite one of them, a table names an id that its subvolume lacks, or jobs are missing before
        this one.
    """
    require_other_file(out_spec, *specs)
    path = file_of(out_spec)
    require_replaceable(path, {volume_name(out_spec), *TABLES})
    names = hashlib.sha256("\n".join(specs).encode()).hexdigest()
    made_of = fingerprint("reconcile", config, subvolumes=names)
    opened = learn_tables(path, TILING, [], lambda _: {}, lambda _: open_subvolumes(specs).tables(specs), made_of, job)
    if opened is None:
        return
    subvolumes = Subvolumes.read(opened, specs)
    tiling, made_of = subvolumes.tiling, {**made_of, "tiling": opened.digest}
    boxes = [tiling.box(index) for index in range(tiling.num_boxes)]
    numbers = {box.start: index for index, box in enumerate(boxes)}
    blocks = component_blocks(Placement(tiling.hull))
    folder = folder_beside(path)
    with VolumePool() as pool:

        def look(box: Box) -> Learnt:
            return subvolumes.look_at(numbers[box.start], pool, config.block_size_zyx)

        def combine(learnt: Iterable[Learnt]) -> dict[str, Table]:
            places = Places(tiling.hull, subvolumes.voxel_size_zyx_nm)
            return with_seeds(_global_ids(tiling, learnt, config, places, folder), blocks, folder)

        matched = learn_tables(path, MATCH, boxes, look, combine, made_of, job)
        if matched is None:
            return
        ids = GlobalIds(subvolumes, matched)
        record = provenance("reconcile", config, subvolumes=len(specs), matches=int(matched.read("matches")[0]))
        write_components(
            out_spec,
            Placement(tiling.hull, subvolumes.voxel_size_zyx_nm, record),
            lambda block: ids.read(block, pool),
            matched,
            config.min_component_size,
            PART_ZYX,
            {**made_of, "match": matched.digest},
            job,
        )


def _global_ids(
    tiling: Tiling, learnt: Iterable[Learnt], config: ReconcileConfig, places: Places, folder: Path | None = None
) -> dict[str, Table]:
    """Join the ids of all subvolumes, and return the tables of `GlobalIds` and `carried_tables`."""
    stacked = Stacked(learnt, folder)
    nodes = Nodes.of(stacked)
    forest, num_matches, num_inside = Forest(nodes.num_nodes), 0, 0
    for first, claims in stacked.batches("claims"):
        joins = find_joins(tiling, nodes, first, claims, config)
        forest.join(joins.pairs)
        num_matches, num_inside = num_matches + len(joins.pairs), num_inside + joins.num_inside
    roots = forest.roots()
    is_object = np.zeros(nodes.num_nodes, bool)
    is_object[roots[nodes.in_core]] = True
    numbers = np.where(is_object, np.cumsum(is_object), 0).astype(np.uint64)[roots]
    counts = (tiling.num_boxes, nodes.num_nodes, num_matches, num_inside, int(is_object.sum()))
    log.info("%d subvolumes with %d ids, %d matches (%d of them parts inside): %d objects", *counts)
    log.info("most parts of one object: %d", np.bincount(roots).max(initial=0))
    return {
        "ids": nodes.sorted_ids,
        "numbers": numbers[nodes.order],
        "first": nodes.first,
        "matches": np.array([num_matches]),
        **carried_tables(stacked, nodes, numbers, places, folder),
    }


def find_joins(tiling: Tiling, nodes: Nodes, first: np.ndarray, claims: np.ndarray, config: ReconcileConfig) -> Joins:
    """Match the ids of some subvolumes with those of later ones that they overlap."""
    found = np.column_stack([nodes.find(first, claims[:, 1]), nodes.find(claims[:, 0], claims[:, 2]), claims[:, 6]])
    a, b, counts = add_up(found).T
    of_a, of_b = nodes.subvolumes_of(a), nodes.subvolumes_of(b)
    in_overlap = (of_b * nodes.num_nodes + a).astype(np.uint64), (of_a * nodes.num_nodes + b).astype(np.uint64)
    table, voxels = ContingencyTable(*in_overlap, counts), (nodes.voxels[a], nodes.voxels[b])
    best = best_of_each_other(table, needed_voxels(voxels, tiling.overlap_shares(of_a, of_b), config), config)
    inside = parts_inside(table, voxels, config) & ~best
    return Joins(np.stack([a, b], axis=1)[best | inside], int(inside.sum()))
