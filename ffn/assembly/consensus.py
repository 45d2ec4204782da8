"""Split-biased consensus: voxels stay together only where two segmentations agree that they belong together."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ffn.assembly.components import FIRST_OVERLAP, no_table
from ffn.assembly.config import ConsensusConfig
from ffn.assembly.contacts import ORIGINS, OVERLAPS, Objects, faces_in, halo_of, overlap_rows, ranges, read_rows, spread
from ffn.config import PART_ZYX
from ffn.contingency import ContingencyTable, RowLookup, RowSum, add_up, count_pairs, largest_parts, merge_tables
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, cell_shape, voxels_in
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, blocks_of, job_of, map_blocks, reduce_step
from ffn.io.masks import Inputs
from ffn.io.scratch import Table, Tables
from ffn.io.store import require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, Volume, require_labels, require_same_voxel_size, voxel_size_of
from ffn.options import add_options, add_store_option, from_arguments

log = logging.getLogger(__name__)

COUNT = "count"  # step before the blocks
TABLES = (OVERLAPS, ORIGINS)
MAX_ID = 2**63 - 1  # tables are signed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Split-biased consensus of two segmentations: voxels stay together only where both agree.

    It is meant for two runs with different seed orders, which rarely make the same merger. Agglomeration can join what
    the consensus splits too much. Ids are those of A; parts split off from a segment of A get new ids.

    example:
      ffn consensus forward.zarr reversed.zarr --out consensus.zarr
    """
    parser.add_argument(
        "a", metavar="A", help="labels, NAME.zarr or FILE.h5:DATASET; the result keeps its ids and background"
    )
    parser.add_argument("b", metavar="B", help="labels of the same box")
    add_store_option(parser, "--out", "uint64 segmentation")
    add_job_options(parser, (COUNT,))
    add_options(parser, ConsensusConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    consensus(arguments.a, arguments.b, arguments.out, from_arguments(ConsensusConfig, arguments), job_of(arguments))


def consensus(a_spec: str, b_spec: str, out: str, config: ConsensusConfig, job: Job = WHOLE) -> None:
    """Write the consensus of two segmentations of the same box; see `fragment_ids` for its definition.

    Both are read twice, block by block: the step `COUNT` counts pairs of ids, and the blocks are written with the ids
    that follow from it. What makes the tables needs memory for the pairs of ids that occur, or for the pairs of
    fragments that touch; what writes, only for those near its block. The result does not depend on blocks or jobs.

    Ids come from the first segmentation; 0 is background. The store also gets the table ``overlaps`` of `candidates`,
    from which agglomeration starts, and those ``origins`` of the first segmentation, if it has any, whose ids remain.
    """
    with Inputs("consensus", config, out, a=a_spec, b=b_spec) as inputs:
        a, b = inputs.segmentation("a"), inputs.segmentation("b")
        _require_same_place(a, b)
        require_replaceable(out, {MAIN, *TABLES, FIRST_OVERLAP})
        placement = Placement(a.box, voxel_size_of(a), inputs.provenance())
        dtypes, key = {MAIN: np.uint64}, inputs.key()
        blocks = blocks_of(placement, dtypes)

        def count(block: Box) -> Result:
            return vars(merge_tables(count_pairs(a.read(p), b.read(p)) for p in block.blocks(PART_ZYX)))

        def combine(results: Iterable[Result]) -> dict[str, Table]:
            return _pairs(results, (a.name, b.name), voxels_in(config.min_fragment_um3, placement.voxel_size_zyx_nm))

        counted = reduce_step(out, COUNT, blocks, count, combine, key, job)
        if counted is None:
            return
        fragments = Fragments(counted)

        def work(block: Box, writers: Writers) -> Result:
            return {"faces": _write(block, writers[MAIN].write, a, b, fragments)}

        tables: dict[str, Any] = {**dict.fromkeys(TABLES, np.empty(0)), FIRST_OVERLAP: no_table}  # until the end

        def find_tables(results: Iterable[Result]) -> None:
            whole, ids = fragments.all()
            claims = [overlap_rows(read_rows(volume.name, OVERLAPS, 6)) for volume in (a, b)]
            objects = Objects.read(a.name), Objects.read(b.name)
            tables[OVERLAPS] = candidates(whole, ids, merged_faces(each["faces"] for each in results), claims, objects)
            rows = read_rows(a.name, ORIGINS, 6)
            tables[ORIGINS] = rows[np.isin(rows[:, 0], ids.astype(np.int64))]
            log.info("%s", _summary(whole, ids))

        map_blocks(out, dtypes, placement, work, {**key, "count": counted.digest}, job, tables, find_tables)


class Fragments:
    """The voxels that share a pair of ids, which are numbered by the rows of a table of all pairs."""

    def __init__(self, counted: Tables) -> None:
        self._pairs = counted.arrays["pairs"]  # with voxels and ids; by ascending pair

    def of(self, a: np.ndarray) -> tuple[RowLookup, np.ndarray, np.ndarray]:
        """Return where to find the pairs of segments of the first segmentation, their rows and ids; of -1, 0."""
        known = np.unique(a[a != 0]).astype(np.int64)
        first, last = (np.searchsorted(self._pairs[:, 0], known, side) for side in ("left", "right"))
        _, rows = ranges(first, last - first)
        found = np.array(self._pairs[rows])
        return RowLookup(found[:, 0], found[:, 1]), np.append(rows, 0), np.append(found[:, 3], 0).astype(np.uint64)

    def all(self) -> tuple[ContingencyTable, np.ndarray]:
        """Return the table of all pairs, and the id (uint64) of each."""
        a, b, voxels, ids = np.array(self._pairs).T
        return ContingencyTable(a.astype(np.uint64), b.astype(np.uint64), voxels), ids.astype(np.uint64)


def _pairs(results: Iterable[Result], names: Sequence[str], min_fragment_size: int) -> dict[str, Table]:
    """Return the table of `Fragments`."""
    table = merge_tables(ContingencyTable(**each) for each in results)
    for name, ids in zip(names, (table.a, table.b), strict=True):
        if len(ids) and ids.max() > MAX_ID:
            raise VolumeError(f"{name}: has id {ids.max()}, expected ids from 0 to {MAX_ID}. Renumber it")
    columns = table.a, table.b, table.voxels, fragment_ids(table, min_fragment_size)
    return {"pairs": np.stack([column.astype(np.int64) for column in columns], axis=1)}


def _write(
    block: Box, write: Callable[[Box, np.ndarray], None], a: Volume, b: Volume, fragments: Fragments
) -> np.ndarray:
    """Write a block, and return the faces between its kept fragments, which are labelled row + 1."""
    size, faces = voxel_size_of(a), []
    for part in block.blocks(PART_ZYX):
        outer = part.grow(halo_of(size)).intersect(a.box)
        labels_a = a.read(outer)
        lookup, rows, ids = fragments.of(labels_a)
        found = lookup.of_voxels(labels_a, b.read(outer))
        write(part, ids[found[part.slices(outer.start)]])
        labels = np.where(ids == 0, 0, rows + 1).astype(np.uint64)
        faces.append(touching(labels[found], part, outer, size))
    return add_up(np.concatenate(faces))


def fragment_ids(table: ContingencyTable, min_fragment_size: int) -> np.ndarray:
    """Choose the id of every fragment, the voxels that share a pair of ids.

    Fragments with fewer voxels than `min_fragment_size` become 0. The largest fragment of each a keeps its id; of equal
    fragments, the one with the smallest b. All others get new ids (uint64) after the largest a, in order of a and b.
    Background of a stays background. Background of b counts as one more object, so voxels that only a has are kept.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, "oversegmentation consensus". Background is treated as in the published
    code.
    """
    if not len(table.voxels):
        return np.zeros(0, np.uint64)
    keeps_id = np.zeros(len(table.voxels), bool)
    keeps_id[largest_parts(table.a, table.b, table.voxels)] = True
    remains = (table.a != 0) & (table.voxels >= min_fragment_size)
    is_new = remains & ~keeps_id
    ids = np.where(remains, table.a, 0)
    ids[is_new] = table.a.max() + np.arange(1, np.count_nonzero(is_new) + 1, dtype=np.uint64)
    return ids


def _require_same_place(a: Volume, b: Volume) -> None:
    for volume in (a, b):
        require_labels(volume)
    if a.box != b.box:
        raise VolumeError(f"{b.name}: covers {b.box}, expected the box of {a.name}, {a.box}")
    require_same_voxel_size(b, a)


def _summary(table: ContingencyTable, ids: np.ndarray) -> str:
    a, b, remaining = (len(np.unique(column[column != 0])) for column in (table.a, table.b, ids))
    dropped = int(table.voxels[(ids == 0) & (table.a != 0)].sum())
    return f"consensus of {a} and {b} segments: {remaining}; {dropped} voxels of small fragments dropped"


def touching(fragments: np.ndarray, block: Box, outer: Box, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Count the faces between fragments, also across gaps: between two there is often one that was too small to keep.

    `fragments` are the labels of `outer`, the block with the halo of `halo_of`. The result (int64, (N, 6)) has smaller
    label, larger label, first voxel of a cell, faces there.
    """
    cell, rows = np.array(cell_shape(voxel_size_zyx_nm)), [np.empty((0, 6), np.int64)]
    for ids, places, _ in faces_in(spread(fragments, voxel_size_zyx_nm), block, outer):
        rows.append(np.column_stack([ids.astype(np.int64), places // cell * cell, np.ones(len(ids), np.int64)]))
    return add_up(np.concatenate(rows))


def merged_faces(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Add up the faces of disjoint blocks, and turn their labels (row + 1) into rows."""
    total = RowSum(6)
    for faces in parts:
        total.add(faces)
    return total.rows() - (1, 1, 0, 0, 0, 0)


def candidates(
    table: ContingencyTable,
    ids: np.ndarray,
    faces: np.ndarray,
    claims: Sequence[np.ndarray],
    objects: tuple[Objects, Objects],
) -> np.ndarray:
    """List the touching fragments that are one object, or two overlapping ones, in one of the two segmentations.

    The rows of `table` are the fragments, `ids` are their ids. `faces` are those of `merged_faces`, `claims` the
    ``overlaps`` of the two inputs. The result has rows of ``overlaps`` with the evidence for each pair in voxels. Each
    input adds the size of the smaller fragment, wherever they touch, if it has both in one object; else the voxels that
    its two objects both claimed.
    """
    one, other = faces[:, 0], faces[:, 1]
    smaller = np.minimum(table.voxels[one], table.voxels[other])
    pairs = np.unique(faces[:, :2], axis=0)
    rows = [np.empty((0, 6), np.int64)]
    for column, claimed, owners in zip((table.a, table.b), claims, objects, strict=True):
        same = (column[one] == column[other]) & (column[one] != 0)
        rows.append(np.column_stack([faces[:, :5], smaller])[same])
        rows.append(_claimed(claimed, pairs, owners.of(column[pairs]).astype(np.int64)))
    found = np.concatenate(rows)
    return overlap_rows(np.column_stack([ids[found[:, :2]].astype(np.int64), found[:, 2:]]))


def _claimed(claims: np.ndarray, pairs: np.ndarray, objects: np.ndarray) -> np.ndarray:
    """Return the rows of `claims` on the two `objects` of each pair of fragments, by the rows of the fragments."""
    known, first, count = np.unique(claims[:, :2], axis=0, return_index=True, return_counts=True)
    entry = RowLookup(*known.T).find(*np.sort(objects, axis=1).T)
    pairs, entry = pairs[entry >= 0], entry[entry >= 0]
    which, places = ranges(first[entry], count[entry])
    return np.column_stack([pairs[which], claims[places][:, 2:]])
