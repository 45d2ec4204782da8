"""Compare segmentations with the ground truth, block by block: contingency table, scores, run length."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable, TableSum, count_pairs, merge_tables
from ffn.errors import EvaluationError
from ffn.evaluation.border import read_without_border
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.error_places import ErrorPlace, Parts, find_places
from ffn.evaluation.intervals import intervals
from ffn.evaluation.run_length import expected_run_length
from ffn.evaluation.scores import CONVENTIONS, summarize
from ffn.evaluation.skeletons import Skeletons
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.blocks import Learnt, blocks_of
from ffn.io.masks import NO_MASKS, Masks
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, Read, Volume
from ffn.progress import track


def blocks_in(box: Box) -> list[Box]:
    """Return the blocks in which labels are compared: the shards of a volume of labels there."""
    return blocks_of(Placement(box), {MAIN: np.uint64})


def tabulate(truth: Read, segmentation: Read, box: Box, block_size_zyx: ZYX) -> ContingencyTable:
    """Count the pairs of ids in `box`, block by block.

    Parameters
    ----------
    truth, segmentation : callable
        Return the labels of a box.
    box : Box
        Where to compare.
    block_size_zyx : tuple of int
        Voxels read at a time. The result does not depend on it.
    """
    blocks = list(box.blocks(block_size_zyx))
    return merge_tables(
        count_pairs(truth(block), segmentation(block)) for block in track(blocks, len(blocks), "compare")
    )


class ScoreTables(NamedTuple):
    """Pairs of body and segment in the whole box, and without the border band of the convention ``cremi``."""

    all: ContingencyTable
    inner: ContingencyTable

    def of(self, convention: str) -> ContingencyTable:
        """Return the table that a convention is computed from."""
        return self.inner if convention == "cremi" else self.all


class Compared(NamedTuple):
    """All that the scores of a segmentation in a box are computed from.

    Parameters
    ----------
    tables : ScoreTables
        Pairs of body and segment.
    skeletons : Skeletons or None
        Those of the ground truth, inside the box and not masked.
    segments : uint64 ndarray of shape (N,)
        The segment at each of their nodes.
    """

    tables: ScoreTables
    skeletons: Skeletons | None
    segments: np.ndarray


@dataclass(frozen=True)
class Scorer:
    """Score any segmentation against one ground truth.

    Parameters
    ----------
    truth : Volume
        Labels of the ground truth.
    voxel_size_zyx_nm : tuple of float
        Its voxel size.
    config : EvaluateConfig
        Block size, border band, tolerance.
    skeletons : Skeletons, optional
        Its skeletons.
    rng_seed : int
        Fixes the intervals.
    known : Box, optional
        What can be read of the ground truth; default all.
    masks : Masks
        Voxels in which no skeleton counts.
    """

    truth: Volume
    voxel_size_zyx_nm: VoxelSize
    config: EvaluateConfig
    skeletons: Skeletons | None = None
    rng_seed: int = 1
    known: Box | None = None
    masks: Masks = NO_MASKS

    def compare(self, read: Read, box: Box) -> Compared:
        """Compare the segments that `read` returns in one pass over the blocks."""
        comparison = Comparison(self, [read], box)
        return comparison.add_up(map(comparison.look, track(comparison.blocks, len(comparison.blocks), "compare")))[0]

    def within(self, box: Box) -> Scorer:
        """Return the scorer of a part of a box: without skeletons if they all lie elsewhere."""
        inside = self.skeletons and self.skeletons.crop(box, self.voxel_size_zyx_nm)
        return replace(self, skeletons=inside if inside and inside.edge_lengths_nm().any() else None)

    def scores(self, compared: Compared) -> dict[str, Any]:
        """Score a segmentation.

        Returns
        -------
        dict
            See `ffn.evaluation.scores.summarize`. ``intervals`` has the limits of each score, see
            `ffn.evaluation.intervals.intervals`. With skeletons, there are also ``erl`` (strict) and
            ``erl_tolerant``; see `expected_run_length`.
        """
        tables = compared.tables
        limits = {name: intervals(tables.of(name), name, self.rng_seed) for name in CONVENTIONS}
        return {**summarize(*tables), "intervals": limits, **self._run_length(compared)}

    def scores_where(self, read: Read, others: Mapping[str, Read], box: Box) -> dict[str, Any]:
        """Score a segmentation under the convention ``foreground``, on the voxels that others cover.

        A segmentation that leaves out what is difficult scores well under that convention. So it can only be compared
        with scores on the same voxels.

        Parameters
        ----------
        read : callable
            Returns the segments of a box.
        others : dict of str to callable
            The same of other segmentations, by name.
        box : Box
            Where to compare.

        Returns
        -------
        dict
            For each name ``scores``, ``covered_fraction`` and ``intervals``, as in `scores`.
        """
        reads = [lambda part, other=other: np.where(other(part) != 0, read(part), 0) for other in others.values()]
        comparison = Comparison(replace(self, skeletons=None), reads, box)
        compared = comparison.add_up(map(comparison.look, comparison.blocks))
        return {name: self._foreground(one.tables.all) for name, one in zip(others, compared, strict=True)}

    def _foreground(self, table: ContingencyTable) -> dict[str, Any]:
        limits = intervals(table, "foreground", self.rng_seed)
        summary = summarize(table, table)
        return {
            "scores": {"foreground": summary["scores"]["foreground"]},
            "covered_fraction": summary["covered_fraction"],
            "intervals": {"foreground": limits},
        }

    def _run_length(self, compared: Compared) -> dict[str, Any]:
        if compared.skeletons is None:
            return {}
        tolerance = self.config.erl_tolerance_nm
        tolerant = expected_run_length(compared.skeletons, compared.segments, tolerance)
        strict = expected_run_length(compared.skeletons, compared.segments)
        return {"erl": strict, "erl_tolerant": {"tolerance_nm": tolerance, **tolerant}}


class Comparison:
    """Several segmentations beside the ground truth, block by block.

    Parameters
    ----------
    scorer : Scorer
        Has the ground truth and its skeletons.
    reads : sequence of callable
        Each returns the segments of a box.
    box : Box
        Where to compare; its `blocks` tile it.

    Raises
    ------
    EvaluationError
        If there are skeletons, but none in `box`.
    """

    def __init__(self, scorer: Scorer, reads: Sequence[Read], box: Box) -> None:
        self._scorer, self._reads, self._box = scorer, reads, box
        self.blocks = blocks_in(box)
        self._skeletons = _skeletons_inside(scorer, box)
        self._nodes = np.zeros((0, 3), np.int64)
        if self._skeletons is not None:
            self._nodes = self._skeletons.voxels_zyx(scorer.voxel_size_zyx_nm)
        self._by_z = np.argsort(self._nodes[:, 0], kind="stable")
        self._z = self._nodes[self._by_z, 0]

    def look(self, block: Box) -> Learnt:
        """Compare one block.

        Returns
        -------
        dict of str to ndarray
            For each segmentation, by its number, its pairs: ``all0`` and, with a border band, ``inner0``. ``nodes`` are
            rows of the skeletons' nodes in the block that are not masked, ``segments`` the segments there, in a row
            for each segmentation.
        """
        config, truth = self._scorer.config, self._scorer.truth
        sums: dict[str, TableSum] = defaultdict(TableSum)
        near = self._nodes_in(block)
        nodes, segments = [np.zeros(0, np.int64)], [np.zeros((len(self._reads), 0), np.uint64)]
        for part in block.blocks(config.block_size_zyx):
            bodies = {"all": truth.read(part)}
            if config.border_nm:
                size, known = self._scorer.voxel_size_zyx_nm, self._scorer.known
                bodies["inner"] = read_without_border(truth, part, config.border_nm, size, known)
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
        if not len(rows) or not self._scorer.masks:
            return rows
        return rows[~self._scorer.masks.read(part)[tuple((self._nodes[rows] - part.start).T)]]

    def add_up(self, learnt: Iterable[Learnt]) -> list[Compared]:
        """Return what all blocks together say about each segmentation.

        Raises
        ------
        EvaluationError
            If the ground truth is empty in the box.
        """
        sums: dict[str, TableSum] = defaultdict(TableSum)
        segments = np.zeros((len(self._reads), len(self._nodes)), np.uint64)
        is_scored = np.zeros(len(self._nodes), bool)
        for each in learnt:
            segments[:, each["nodes"]], is_scored[each["nodes"]] = each["segments"], True
            for name in each.keys() - {"nodes", "segments"}:
                sums[name].add(_unpacked(each[name]))
        tables = {name: one.table() for name, one in sums.items()}
        if not tables["all0"].a.any():
            raise EvaluationError(
                f"{self._scorer.truth.name}: has no labelled voxel in {self._box}, at least one is needed. "
                "Choose another --box"
            )
        both = [(tables[f"all{i}"], tables.get(f"inner{i}", tables[f"all{i}"])) for i in range(len(self._reads))]
        skeletons = self._skeletons and self._skeletons.keep(is_scored)
        if skeletons and not skeletons.edge_lengths_nm().any():
            skeletons = None  # all are masked
        rows = segments[:, is_scored]
        return [Compared(ScoreTables(*pair), skeletons, row) for pair, row in zip(both, rows, strict=True)]

    def places(self, parts: Sequence[Parts], learnt: Iterable[Learnt]) -> list[ErrorPlace]:
        """Return where to look at errors of the first segmentation; see `find_places`."""
        config, truth, size = self._scorer.config, self._scorer.truth, self._scorer.voxel_size_zyx_nm
        tables = zip(self.blocks, (_unpacked(each["all0"]) for each in learnt), strict=True)
        return find_places(parts, truth.read, self._reads[0], self._box, tables, config.block_size_zyx, size)


def _packed(table: ContingencyTable) -> np.ndarray:
    return np.stack([table.a, table.b, table.voxels.astype(np.uint64)])


def _unpacked(rows: np.ndarray) -> ContingencyTable:
    return ContingencyTable(rows[0], rows[1], rows[2].astype(np.int64))


def _skeletons_inside(scorer: Scorer, box: Box) -> Skeletons | None:
    """Return the skeletons in `box`, None if there are none anywhere."""
    if scorer.skeletons is None or not len(scorer.skeletons.edges):
        return None
    inside = scorer.skeletons.crop(box, scorer.voxel_size_zyx_nm)
    if not inside.edge_lengths_nm().any():
        raise EvaluationError(
            f"--skeletons: none of {len(np.unique(scorer.skeletons.owners))} lies in {box}, at least one is needed. "
            "Are they in nanometres from the volume's origin?"
        )
    return inside
