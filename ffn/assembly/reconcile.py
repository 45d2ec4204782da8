"""Join overlapping subvolumes into one volume with global ids."""

from __future__ import annotations

import argparse
import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ffn.assembly.components import FIRST_OVERLAP, LABEL, TABLES, Forest, Labels, write_components
from ffn.assembly.config import ReconcileConfig
from ffn.assembly.contacts import ORIGINS, OVERLAPS, overlap_rows
from ffn.assembly.subvolumes import GlobalIds, LocalIds, Subvolumes, SubvolumeTables, Tiling, open_subvolumes
from ffn.contingency import ContingencyTable, add_up
from ffn.geometry import voxels_in
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of, no_result, reduce_step
from ffn.io.scratch import ScratchRows, Table, folder_beside, sort_rows
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, require_other_file
from ffn.options import add_options, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

TILING, MATCH = "tiling", "match"  # steps before that of components
STEPS = (TILING, MATCH, LABEL)
CERTAIN_SHARE = 0.5  # our choice: flood filling may miss half a FOV of an overlap on either side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Join overlapping subvolumes into one volume. Ids that match in the overlaps get the same global id.

    example:
      ffn reconcile subvolumes/*.zarr --out segmentation.zarr
    """
    parser.add_argument("subvolumes", nargs="+", metavar="VOLUME", help="of ffn segment")
    parser.add_argument("--out", required=True, metavar="NAME.zarr", help="uint64 segmentation to write")
    add_job_options(parser, STEPS)
    add_options(parser, ReconcileConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    reconcile(arguments.subvolumes, arguments.out, from_arguments(ReconcileConfig, arguments), job_of(arguments))


def reconcile(specs: Sequence[str], out: str, config: ReconcileConfig, job: Job = WHOLE) -> None:
    """Write all subvolumes of a tiling as one volume in which an object has the same id everywhere.

    The result depends only on the voxels: not on the order of `specs`, the ids inside a subvolume, blocks or jobs.
    Objects are numbered by the first subvolume that contains them, and within it by their first voxel.

    The step `TILING` opens all subvolumes. `MATCH` compares each with its neighbours and ends with the global ids.
    `LABEL` finds the connected pieces of these in each block and ends with the ids of components. Then the blocks are
    written. What ends `MATCH` needs memory for the ids of all subvolumes, what ends `LABEL` for the
    pieces of all blocks, and what works on blocks only for the rows of its block.

    Voxels in an overlap come from the subvolume whose core they are in. The store also gets the tables of
    `global_tables`.
    """
    require_other_file(out, *specs)
    require_replaceable(out, {MAIN, *TABLES, FIRST_OVERLAP})
    key = fingerprint("reconcile", config, subvolumes=hashlib.sha256("\n".join(specs).encode()).hexdigest())
    opened = reduce_step(out, TILING, [], no_result, lambda _: open_subvolumes(specs).tables(specs), key, job)
    if opened is None:
        return
    subvolumes = Subvolumes.read(opened, specs)
    tiling, key = subvolumes.tiling, {**key, "tiling": opened.digest}
    numbers = {box.start: index for index, box in enumerate(tiling)}
    folder = folder_beside(out)

    def combine(results: Iterable[Result]) -> dict[str, Table]:
        return global_ids(SubvolumeTables(results, folder), tiling, config, folder)

    matched = reduce_step(out, MATCH, tiling, lambda box: subvolumes.look_at(numbers[box.start]), combine, key, job)
    if matched is None:
        return
    record = provenance("reconcile", config, subvolumes=len(specs), matches=int(matched.read("matches")[0]))
    write_components(
        out,
        Placement(tiling.hull, subvolumes.voxel_size_zyx_nm, record),
        Labels(GlobalIds(subvolumes, matched).read, matched),
        voxels_in(config.min_component_um3, subvolumes.voxel_size_zyx_nm),
        {**key, "match": matched.digest},
        job,
    )


def global_ids(
    subvolumes: SubvolumeTables, tiling: Tiling, config: ReconcileConfig, folder: Path | None
) -> dict[str, Table]:
    """Join the ids of all subvolumes; return the tables of `GlobalIds` and `global_tables`."""
    local = LocalIds.of(subvolumes)
    num_nodes, num_matches = len(local.ids), 0
    forest = Forest(num_nodes)
    for owners, claims in subvolumes.batches("claims"):
        pairs = matches(tiling, local, owners, claims, config)
        forest.join(pairs)
        num_matches += len(pairs)
    roots = forest.roots()
    is_object = np.zeros(num_nodes, bool)
    is_object[roots[local.in_core]] = True
    numbers = np.where(is_object, np.cumsum(is_object), 0).astype(np.uint64)[roots]
    counts = (len(tiling), num_nodes, num_matches, int(is_object.sum()))
    log.info("%d subvolumes with %d ids, %d matches: %d objects", *counts)
    log.info("most parts of one object: %d", np.bincount(roots).max(initial=0))
    order = np.lexsort((local.ids, local.subvolumes))
    return {
        "ids": local.ids[order],
        "numbers": numbers[order],
        "first": local.first,
        "matches": np.array([num_matches]),
        **global_tables(subvolumes, local, numbers, folder),
    }


def matches(
    tiling: Tiling, local: LocalIds, owners: np.ndarray, claims: np.ndarray, config: ReconcileConfig
) -> np.ndarray:
    """Return the pairs of nodes (int64, (E, 2)) that are one object, among some subvolumes and later ones.

    `claims` are all that these subvolumes share with later ones, see `Subvolumes.look_at`; `owners` has the number of
    the subvolume of each row.
    """
    find = local.lookup.find
    found = np.column_stack([find(owners, claims[:, 1]), find(claims[:, 0], claims[:, 2]), claims[:, 6]])
    a, b, counts = add_up(found).T
    of_a, of_b = local.subvolumes[a], local.subvolumes[b]
    num_nodes = len(local.ids)
    in_overlap = (of_b * num_nodes + a).astype(np.uint64), (of_a * num_nodes + b).astype(np.uint64)
    needed = needed_voxels((local.voxels[a], local.voxels[b]), tiling.overlap_shares(of_a, of_b), config)
    best = best_of_each_other(ContingencyTable(*in_overlap, counts), needed, config)
    return np.stack([a, b], axis=1)[best]


def needed_voxels(
    voxels: tuple[np.ndarray, np.ndarray], share: np.ndarray | float, config: ReconcileConfig
) -> np.ndarray:
    """Return how many voxels two ids must have in common to be joined: fewer for segments of a smaller cross-section.

    `voxels` are those of both ids in their whole subvolumes, `share` is the depth of the overlap as a share of the
    subvolume's side: a neurite that runs through both has this share of its voxels in the overlap.

    Examples
    --------
    >>> needed_voxels((np.array([4096, 10**6]), np.array([3000, 5000])), 48 / 256, ReconcileConfig()).tolist()
    [384.0, 1000.0]
    """
    return np.minimum(config.min_overlap_voxels, CERTAIN_SHARE * share * np.maximum(*voxels))


def best_of_each_other(table: ContingencyTable, needed: np.ndarray, config: ReconcileConfig) -> np.ndarray:
    """Choose the pairs of ids that are each other's best partner; return whether each pair of `table` is chosen.

    `table` has the voxels of overlaps by their ids in the first and the second subvolume, different ones in each
    overlap. Only voxels that both segmented count: flood filling reaches only part of the outer shell, half a FOV
    thick, so background there means nothing. The minimum voxels of each pair are `needed`, see `needed_voxels`. A tie
    for the best partner joins nothing: a wrong merge costs more than a split.
    """
    chosen = table.voxels >= needed
    for ids in (table.a, table.b):
        index = np.unique(ids, return_inverse=True)[1]
        total, best, num_best = np.zeros((3, len(ids)), np.int64)
        np.add.at(total, index, table.voxels)
        np.maximum.at(best, index, table.voxels)
        is_best = table.voxels == best[index]
        np.add.at(num_best, index, is_best)
        chosen &= is_best & (num_best[index] == 1) & (table.voxels >= config.min_overlap_fraction * total[index])
    return chosen


def global_tables(
    subvolumes: SubvolumeTables, local: LocalIds, numbers: np.ndarray, folder: Path | None
) -> dict[str, Table]:
    """Return ``origins`` and ``overlaps`` of the volume; `numbers` has the global id of each node.

    ``origins`` (id, seed z, y, x, FOVs, pass) has one row for each part of an object. ``overlaps`` counts what two
    objects both claimed, within subvolumes and between them.
    """
    claims, origins = (ScratchRows((6,), np.int64, folder) for _ in range(2))

    def named(owners: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return numbers[local.lookup.find(owners, ids)].astype(np.int64)

    def claim(*columns: np.ndarray) -> None:
        claims.append(overlap_rows(np.column_stack(columns)))

    for owners, rows in subvolumes.batches("claims"):
        claim(named(owners, rows[:, 1]), named(rows[:, 0], rows[:, 2]), rows[:, 3:])
    for owners, rows in subvolumes.batches(OVERLAPS):
        claim(named(owners, rows[:, 0]), named(owners, rows[:, 1]), rows[:, 2:])
    for owners, rows in subvolumes.batches(ORIGINS):
        ids = named(owners, rows[:, 0])
        origins.append(np.column_stack([ids, rows[:, 1:]])[ids > 0])
    in_order = sort_rows(origins, lambda rows: rows[np.lexsort(rows.T[::-1])], folder)
    return {ORIGINS: in_order, OVERLAPS: sort_rows(claims, add_up, folder)}
