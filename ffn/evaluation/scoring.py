"""Compare one segmentation with the ground truth: contingency table, scores, run length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable, TableSum, count_pairs, merge_tables
from ffn.errors import EvaluationError
from ffn.evaluation.border import read_without_border
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.intervals import intervals
from ffn.evaluation.run_length import expected_run_length, segments_at
from ffn.evaluation.scores import CONVENTIONS, summarize
from ffn.evaluation.skeletons import Skeletons
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.volume import Read, Volume
from ffn.progress import track


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
    """

    truth: Volume
    voxel_size_zyx_nm: VoxelSize
    config: EvaluateConfig
    skeletons: Skeletons | None = None
    rng_seed: int = 1

    def tables(self, reads: Sequence[Read], box: Box) -> list[ScoreTables]:
        """Count the pairs of body and segment of several segmentations, in one pass over the blocks.

        Parameters
        ----------
        reads : sequence of callable
            Each returns the segments of a box.
        box : Box
            Where to compare.

        Raises
        ------
        EvaluationError
            If the ground truth is empty in `box`.
        """
        blocks = list(box.blocks(self.config.block_size_zyx))
        sums = [(TableSum(), TableSum()) for _ in reads]
        for block in track(blocks, len(blocks), "compare"):
            truth = self.truth.read(block)
            inner_truth = self._inner_truth(block) if self.config.border_nm else None
            for read, (total, inner) in zip(reads, sums, strict=True):
                segments = read(block)
                total.add(count_pairs(truth, segments))
                if inner_truth is not None:
                    inner.add(count_pairs(inner_truth, segments))
        found = [total.table() for total, _ in sums]
        if not found[0].a.any():
            raise EvaluationError(
                f"{self.truth.name}: has no labelled voxel in {box}, at least one is needed. Choose another --box"
            )
        has_band = bool(self.config.border_nm)
        return [
            ScoreTables(table, inner.table() if has_band else table)
            for table, (_, inner) in zip(found, sums, strict=True)
        ]

    def scores(self, read: Read, box: Box, tables: ScoreTables | None = None) -> dict[str, Any]:
        """Score the segments that `read` returns.

        Parameters
        ----------
        read : callable
            Returns the segments of a box.
        box : Box
            Where to compare.
        tables : ScoreTables, optional
            The result of `tables` for the same arguments, if it is known already.

        Returns
        -------
        dict
            See `ffn.evaluation.scores.summarize`. ``intervals`` has the limits of each score, see
            `ffn.evaluation.intervals.intervals`. With skeletons, there are also ``erl`` (strict) and
            ``erl_tolerant``; see `expected_run_length`.
        """
        tables = tables or self.tables([read], box)[0]
        limits = {name: intervals(tables.of(name), name, self.rng_seed) for name in CONVENTIONS}
        return {**summarize(*tables), "intervals": limits, **self._run_length(read, box)}

    def _inner_truth(self, block: Box) -> np.ndarray:
        return read_without_border(self.truth, block, self.config.border_nm, self.voxel_size_zyx_nm)

    def _run_length(self, read: Read, box: Box) -> dict[str, Any]:
        if self.skeletons is None or not len(self.skeletons.edges):
            return {}
        inside = self.skeletons.crop(box, self.voxel_size_zyx_nm)
        if not inside.edge_lengths_nm().any():
            raise EvaluationError(
                f"--skeletons: none of {len(np.unique(self.skeletons.owners))} lies in {box}, at least one is needed. "
                "Are they in nanometres from the volume's origin?"
            )
        voxels = inside.voxels_zyx(self.voxel_size_zyx_nm)
        segments = segments_at(read, voxels, box, self.config.block_size_zyx)
        tolerance = self.config.erl_tolerance_nm
        tolerant = {"tolerance_nm": tolerance, **expected_run_length(inside, segments, tolerance)}
        return {"erl": expected_run_length(inside, segments), "erl_tolerant": tolerant}
