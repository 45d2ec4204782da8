"""Join overlapping subvolumes into one volume with global ids."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.carried import carried_tables
from ffn.assembly.components import LABEL, TABLES, component_blocks, with_seeds, write_components
from ffn.assembly.nodes import Nodes, SubvolumeIds
from ffn.assembly.overlap import best_of_each_other, needed_voxels, parts_inside
from ffn.assembly.pool import VolumePool
from ffn.assembly.subvolumes import GlobalIds, Subvolumes, open_subvolumes
from ffn.assembly.tiling import Tiling
from ffn.assembly.unionfind import connected_roots
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, add_up, merge_tables
from ffn.geometry import Box
from ffn.io.blocks import WHOLE, Job, Learnt, add_job_options, job_of
from ffn.io.create import require_replaceable, volume_name
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


def reconcile(specs: Sequence[str], out_spec: str, config: ReconcileConfig, job: Job = WHOLE) -> None:
    """Write all subvolumes as one volume in which an object has the same id everywhere.

    The result depends only on the voxels: not on the order of `specs`, the ids inside a subvolume, blocks or jobs.
    Objects are numbered by the first subvolume that contains them, and within it by their first voxel.

    The step `TILING` opens all subvolumes. `MATCH` compares each with its neighbours and ends with the global ids.
    `LABEL` finds the connected pieces of these in each block and ends with the ids of components. Then the blocks are
    written. What ends a step needs memory for all its rows, what works on blocks only for those of its block.

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
    with VolumePool() as pool:

        def look(box: Box) -> Learnt:
            return subvolumes.look_at(numbers[box.start], pool, config.block_size_zyx)

        def combine(learnt: list[Learnt]) -> dict[str, np.ndarray]:
            return with_seeds(_global_ids(tiling, learnt, config), blocks)

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


def _global_ids(tiling: Tiling, learnt: Sequence[Learnt], config: ReconcileConfig) -> dict[str, np.ndarray]:
    """Join the ids of all subvolumes, and return the tables of `GlobalIds` and `carried_tables`."""
    nodes = Nodes.of([SubvolumeIds(each["ids"], each["voxels"], each["in_core"]) for each in learnt])
    joins = find_joins(tiling, nodes, [each["claims"] for each in learnt], config)
    roots = connected_roots(nodes.num_nodes, joins.pairs)
    objects = np.unique(roots[nodes.in_core])
    numbers = np.where(np.isin(roots, objects), np.searchsorted(objects, roots) + 1, 0).astype(np.uint64)
    counts = (len(learnt), nodes.num_nodes, len(joins.pairs), joins.num_inside, len(objects))
    log.info("%d subvolumes with %d ids, %d matches (%d of them parts inside): %d objects", *counts)
    log.info("most parts of one object: %d", np.bincount(roots).max(initial=0))
    ascending = (nodes.first[index] + order for index, order in enumerate(nodes.order))
    return {
        "ids": np.concatenate(nodes.sorted_ids),
        "numbers": numbers[np.concatenate(list(ascending))],
        "first": nodes.first,
        "matches": np.array([len(joins.pairs)]),
        **carried_tables(learnt, nodes, numbers, joins.shared),
    }


def find_joins(tiling: Tiling, nodes: Nodes, claims: Sequence[np.ndarray], config: ReconcileConfig) -> Joins:
    """Match the ids of all subvolumes that overlap.

    Parameters
    ----------
    tiling : Tiling
        Boxes of the subvolumes.
    nodes : Nodes
        Their ids.
    claims : sequence of int64 ndarray of shape (N, 7)
        What each shares with later ones, see `Subvolumes.look_at`.
    config : ReconcileConfig
        Criteria of a match.

    Returns
    -------
    Joins
        In the order of the overlaps.
    """
    pairs, shared, num_inside = [np.empty((0, 2), np.int64)], [np.empty((0, 6), np.int64)], 0
    for first, of_first in enumerate(claims):
        for second in np.unique(of_first[:, 0]).tolist():
            rows = of_first[of_first[:, 0] == second, 1:]
            ids = rows[:, :2].astype(np.uint64)
            table = merge_tables([ContingencyTable(ids[:, 0], ids[:, 1], rows[:, 5])])
            a, b = nodes.find(first, table.a), nodes.find(second, table.b)
            voxels = nodes.voxels[a], nodes.voxels[b]
            box = tiling.box(first).intersect(tiling.box(second))
            share = min(n / side for n, side in zip(box.shape, tiling.box(first).shape, strict=True))
            best = best_of_each_other(table, needed_voxels(voxels, share, config), config)
            inside = parts_inside(table, voxels, config) & ~best
            pairs.append(np.stack([a, b], axis=1)[best | inside])
            num_inside += int(inside.sum())
            nodes_of = (nodes.find(index, rows[:, side]) for side, index in enumerate((first, second)))
            shared.append(np.column_stack([*nodes_of, rows[:, 2:]]))
    return Joins(np.concatenate(pairs), num_inside, add_up(np.concatenate(shared)))
