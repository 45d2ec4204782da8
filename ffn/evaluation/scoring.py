"""Compare one segmentation with the ground truth: contingency table, scores, run length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.contingency import ContingencyTable, count_pairs, merge_tables
from ffn.errors import EvaluationError
from ffn.evaluation.border import read_without_border
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.run_length import expected_run_length, segments_at
from ffn.evaluation.scores import summarize
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
    """

    truth: Volume
    voxel_size_zyx_nm: VoxelSize
    config: EvaluateConfig
    skeletons: Skeletons | None = None

    def table(self, read: Read, box: Box) -> ContingencyTable:
        """Count the pairs of body and segment, where `read` returns the segments of a box.

        Raises
        ------
        EvaluationError
            If the ground truth is empty in `box`.
        """
        table = tabulate(self.truth.read, read, box, self.config.block_size_zyx)
        if not table.a.any():
            raise EvaluationError(
                f"{self.truth.name}: has no labelled voxel in {box}, at least one is needed. Choose another --box"
            )
        return table

    def scores(self, read: Read, box: Box, table: ContingencyTable | None = None) -> dict[str, Any]:
        """Score the segments that `read` returns.

        Parameters
        ----------
        read : callable
            Returns the segments of a box.
        box : Box
            Where to compare.
        table : ContingencyTable, optional
            The result of `table` for the same arguments, if it is known already.

        Returns
        -------
        dict
            See `ffn.evaluation.scores.summarize`. With skeletons, there are also ``erl`` (strict) and
            ``erl_tolerant``; see `expected_run_length`.
        """
        table = self.table(read, box) if table is None else table
        inner = tabulate(self._inner_truth, read, box, self.config.block_size_zyx) if self.config.border_nm else table
        return {**summarize(table, inner), **self._run_length(read, box)}

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
