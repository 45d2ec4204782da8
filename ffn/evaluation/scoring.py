"""Compare segmentations with the ground truth, block by block: contingency table, scores, run length."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt

from ffn.config import PART_ZYX
from ffn.contingency import ContingencyTable, TableSum, count_pairs, merge_tables
from ffn.errors import EvaluationError
from ffn.evaluation.errors import Scene
from ffn.evaluation.intervals import intervals
from ffn.evaluation.run_length import expected_run_length
from ffn.evaluation.scores import BORDER_NM, CONVENTIONS, summarize
from ffn.evaluation.skeletons import Skeletons
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.block_log import Result
from ffn.io.blocks import blocks_of
from ffn.io.masks import MaskedTruth
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, Read
from ffn.progress import track

ERL_TOLERANCE_NM = 200.0  # tolerant run length: a merger holds this much of a second skeleton; our choice


def blocks_in(box: Box) -> list[Box]:
    """Return the blocks in which labels are compared: the shards of a volume of labels there."""
    return blocks_of(Placement(box), {MAIN: np.uint64})


def tabulate(truth: Read, segmentation: Read, box: Box, block_size_zyx: ZYX) -> ContingencyTable:
    """Count the pairs of ids in `box`, block by block."""
    blocks = list(box.blocks(block_size_zyx))
    return merge_tables(
        count_pairs(truth(block), segmentation(block)) for block in track(blocks, len(blocks), "compare")
    )


class Compared(NamedTuple):
    """What the scores of a segmentation are computed from.

    `tables` has the pairs of body and segment by convention, `skeletons` those that are neither outside nor masked, and
    `segments` the segment at each of their nodes.
    """

    tables: dict[str, ContingencyTable]
    skeletons: Skeletons | None
    segments: np.ndarray


@dataclass(frozen=True)
class Scorer:
    """Score any segmentation against one ground truth. The seed fixes the intervals."""

    truth: MaskedTruth
    voxel_size_zyx_nm: VoxelSize
    skeletons: Skeletons | None = None
    rng_seed: int = 1
    conventions: Sequence[str] = tuple(CONVENTIONS)

    def compare(self, reads: Sequence[Read], box: Box) -> list[Compared]:
        """Compare the segments that each of `reads` returns in one pass over the blocks."""
        comparison = Comparison(self, reads, box)
        return comparison.add_up(map(comparison.look, track(comparison.blocks, len(comparison.blocks), "compare")))

    def scores(self, compared: Compared) -> dict[str, Any]:
        """Score a segmentation: its summary and intervals, with skeletons also ``erl`` and ``erl_tolerant``."""
        limits = {name: intervals(table, name, self.rng_seed) for name, table in compared.tables.items()}
        result = {**summarize(compared.tables), "intervals": limits}
        if compared.skeletons is not None:
            tolerant = expected_run_length(compared.skeletons, compared.segments, ERL_TOLERANCE_NM)
            result["erl"] = expected_run_length(compared.skeletons, compared.segments)
            result["erl_tolerant"] = {"tolerance_nm": ERL_TOLERANCE_NM, **tolerant}
        return result

    def scores_where(self, read: Read, others: Mapping[str, Read], box: Box) -> dict[str, Any]:
        """Score a segmentation under the convention ``foreground``, on the voxels that others cover.

        A segmentation that leaves out difficult voxels scores well under that convention. So only scores on the same
        voxels can be compared.
        """
        reads = [lambda part, other=other: np.where(other(part) != 0, read(part), 0) for other in others.values()]
        scorer = replace(self, skeletons=None, conventions=("foreground",))
        return {name: scorer.scores(one) for name, one in zip(others, scorer.compare(reads, box), strict=True)}


class Comparison:
    """Several segmentations compared with the ground truth, block by block."""

    def __init__(self, scorer: Scorer, reads: Sequence[Read], box: Box) -> None:
        self._scorer, self._reads, self._box = scorer, reads, box
        self.blocks = blocks_in(box)
        self._skeletons = scorer.skeletons and scorer.skeletons.crop(box, scorer.voxel_size_zyx_nm)
        self._nodes = np.zeros((0, 3), np.int64)
        if self._skeletons is not None:
            self._nodes = self._skeletons.voxels_zyx(scorer.voxel_size_zyx_nm)
        self._by_z = np.argsort(self._nodes[:, 0], kind="stable")
        self._z = self._nodes[self._by_z, 0]

    def look(self, block: Box) -> Result:
        """Compare one block: pairs of ids of each segmentation, and its segments at the skeletons' nodes there.

        The pairs of segmentation i are ``all{i}`` and, without the border band, ``cremi{i}``. ``nodes`` are rows of
        nodes that are not masked; ``segments`` has a row for each segmentation.
        """
        scorer, truth = self._scorer, self._scorer.truth
        sums: dict[str, TableSum] = defaultdict(TableSum)
        near = self._nodes_in(block)
        nodes, segments = [np.zeros(0, np.int64)], [np.zeros((len(self._reads), 0), np.uint64)]
        for part in block.blocks(PART_ZYX):
            bodies = {"all": truth.read(part)}
            if "cremi" in scorer.conventions:
                bodies["cremi"] = read_without_border(truth, part, BORDER_NM, scorer.voxel_size_zyx_nm)
            labels = [read(part) for read in self._reads]
            for (kind, of_kind), (number, one) in itertools.product(bodies.items(), enumerate(labels)):
                sums[f"{kind}{number}"].add(count_pairs(of_kind, one))
            nodes.append(self._unmasked(near[part.holds(self._nodes[near])], part))
            at = tuple((self._nodes[nodes[-1]] - part.start).T)
            segments.append(np.stack([one[at].astype(np.uint64) for one in labels]))
        tables = {name: _packed(one.table()) for name, one in sums.items()}
        return {**tables, "nodes": np.concatenate(nodes), "segments": np.concatenate(segments, axis=1)}

    def _nodes_in(self, block: Box) -> np.ndarray:
        """Return the rows of the nodes in a block, looking only at its sections: the nodes of all would be too many."""
        first, last = np.searchsorted(self._z, (block.start[0], block.stop[0]))
        rows = np.sort(self._by_z[first:last])
        return rows[block.holds(self._nodes[rows])]

    def _unmasked(self, rows: np.ndarray, part: Box) -> np.ndarray:
        """Return the rows of nodes in `part` that are not masked."""
        masks = self._scorer.truth.masks
        if not len(rows) or not masks:
            return rows
        return rows[~masks.read(part)[tuple((self._nodes[rows] - part.start).T)]]

    def add_up(self, results: Iterable[Result]) -> list[Compared]:
        """Combine the results of all blocks, for each segmentation."""
        sums: dict[str, TableSum] = defaultdict(TableSum)
        segments = np.zeros((len(self._reads), len(self._nodes)), np.uint64)
        is_scored = np.zeros(len(self._nodes), bool)
        for each in results:
            segments[:, each["nodes"]], is_scored[each["nodes"]] = each["segments"], True
            for name in each.keys() - {"nodes", "segments"}:
                sums[name].add(_unpacked(each[name]))
        tables = {name: one.table() for name, one in sums.items()}
        if not tables["all0"].a.any():
            raise EvaluationError(
                f"{self._scorer.truth.name}: has no labelled voxel in {self._box}, at least one is needed. "
                "Choose another --box"
            )
        skeletons = self._skeletons and self._skeletons.keep(is_scored)
        if skeletons and not skeletons.edge_lengths_nm().any():
            skeletons = None  # all are outside or masked
        return [
            Compared(
                {name: tables[f"cremi{i}" if name == "cremi" else f"all{i}"] for name in self._scorer.conventions},
                skeletons,
                segments[i, is_scored],
            )
            for i in range(len(self._reads))
        ]

    def tables_of_last(self, results: Iterable[Result]) -> Iterator[tuple[Box, ContingencyTable]]:
        """Yield every block and its pairs of body and segment of the last segmentation."""
        for block, each in zip(self.blocks, results, strict=True):
            yield block, _unpacked(each[f"all{len(self._reads) - 1}"])

    def scene(self) -> Scene:
        """Return the volumes in which errors of the last segmentation lie."""
        return Scene(self._scorer.truth.read, self._reads[-1], self._box, self._scorer.voxel_size_zyx_nm)


def _packed(table: ContingencyTable) -> np.ndarray:
    return np.stack([table.a, table.b, table.voxels.astype(np.uint64)])


def _unpacked(rows: np.ndarray) -> ContingencyTable:
    return ContingencyTable(rows[0], rows[1], rows[2].astype(np.int64))


def near_border(labels: np.ndarray, border_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Mark voxels within `border_nm` of a voxel that differs from one of its 4 neighbours in the xy section.

    Background, 0, counts as a label. The convention ``cremi`` leaves this band out, as the challenge does.
    """
    near = np.zeros(labels.shape, dtype=bool)
    for z, section in enumerate(labels):
        interior = _interior(section)
        if not interior.all():
            near[z] = distance_transform_edt(interior, voxel_size_zyx_nm[1:]) <= border_nm
    return near


def read_without_border(truth: MaskedTruth, box: Box, border_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Read the ground truth with the border band set to 0. The result does not depend on how a volume is cut."""
    _, y, x = voxel_size_zyx_nm
    margin = (0, math.ceil(border_nm / y) + 1, math.ceil(border_nm / x) + 1)
    wide = box.grow(margin).intersect(truth.known)
    labels = truth.read(wide)
    labels[near_border(labels, border_nm, voxel_size_zyx_nm)] = 0
    return labels[box.slices(wide.start)]


def _interior(section: np.ndarray) -> np.ndarray:
    """Whether a voxel has the same label as all its neighbours (4 at most) in the section."""
    inner = np.ones(section.shape, dtype=bool)
    for axis in (0, 1):
        same = np.moveaxis(section, axis, 0)[1:] == np.moveaxis(section, axis, 0)[:-1]
        along = np.moveaxis(inner, axis, 0)
        along[1:] &= same
        along[:-1] &= same
    return inner
