"""Stage `sweep`: score an agglomeration graph at several thresholds, without writing a segmentation for each."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.assembly.given import NOTHING_GIVEN, Constraints, GraphInputs, add_graph_options, graph_options
from ffn.assembly.merge import apply_groups, merge_groups, pair_scores
from ffn.config import Mask
from ffn.contingency import ContingencyTable, merge_tables
from ffn.errors import ConfigError
from ffn.evaluation.config import SweepConfig
from ffn.evaluation.evaluate import common_box
from ffn.evaluation.scores import score
from ffn.evaluation.scoring import Comparison
from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.masks import identities, mask_inputs, open_masked_truth
from ffn.io.volume import require_labels, require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments, masks_from
from ffn.provenance import fingerprint, provenance

SWEPT_CONVENTIONS = ("foreground", "all")  # cremi leaves out borders of bodies, which these counts do not know
NO_MERGES = 1.01  # no score reaches this threshold


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score the agglomeration graph against the ground truth at several thresholds.

    example:
      ffn sweep graph.csv --segmentation seg.zarr --truth labels.zarr --out sweep.json
    """
    text = "files of ffn agglomerate; a part of the blocks (--job) needs none"
    parser.add_argument("graphs", nargs="*", metavar="GRAPH.csv", help=text)
    add_volume_option(parser, "--truth", "labels of the ground truth")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores to write")
    add_graph_options(parser)
    add_box_option(parser)
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, SweepConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config, job = from_arguments(SweepConfig, arguments), job_of(arguments)
    if job.writes and not arguments.graphs:
        raise ConfigError("GRAPH.csv: no file is given, expected files of ffn agglomerate")
    inputs = SweepInputs(**graph_options(arguments), truth=arguments.truth, masks=masks_from(arguments))
    sweep(inputs, arguments.out, config, arguments.box, job)


@dataclass(frozen=True, kw_only=True)
class SweepInputs(GraphInputs):
    """Files and volumes that a sweep reads."""

    truth: str  # labels of the ground truth
    masks: tuple[Mask, ...] = ()  # voxels that are not scored


def sweep(inputs: SweepInputs, out: str, config: SweepConfig, box: Box | None = None, job: Job = WHOLE) -> None:
    """Write the scores that the output of `merge` would have at every threshold of the agglomeration graph.

    Blocks are compared once for all thresholds, and their counts are added up.

    The scores in the JSON file are those of the agglomerated segmentation, not filled. Under ``sweep``, it has a list
    of rows for each of `SWEPT_CONVENTIONS`, by falling threshold. The first row is without any merge but those of
    corrections. ``abstained`` is the share of decision points without an answer.

    Raises
    ------
    MergeGraphError, CorrectionError, VolumeError, EvaluationError
        If an input is missing or damaged, the volumes do not overlap, or jobs are missing before this one.
    """
    volumes = {"segmentation": inputs.segmentation, "truth": inputs.truth}
    require_other_file(out, *volumes.values(), *inputs.given.values(), *inputs.graphs)
    # Errors in files come before the work.
    scores, abstained = pair_scores(inputs.edges() if job.writes else [])
    constraints = inputs.constraints() if job.writes else NOTHING_GIVEN
    with open_masked_truth(inputs.truth, inputs.masks) as truth, inputs.open_base() as segmentation:
        require_labels(segmentation)
        box = common_box(segmentation, truth, box)
        comparison = Comparison(truth, [segmentation.read], box, conventions=SWEPT_CONVENTIONS)
        cuts = {"cuts": inputs.cuts} if inputs.cuts else {}
        key = fingerprint("sweep", None, box=box, **identities(volumes | cuts, inputs.masks))
        results = reduce_blocks(out, comparison.blocks, comparison.look, key, job)
    if results is None:
        return
    (compared,) = comparison.add_up(results)
    thresholds = [NO_MERGES, *sorted(config.thresholds, reverse=True)]
    steps = [sweep_step(compared.tables["all"], scores, threshold, constraints) for threshold in thresholds]
    rows = {name: [step[name] for step in steps] for name in SWEPT_CONVENTIONS}
    made_by = provenance(
        "sweep", config, **volumes, **inputs.given, graphs=len(inputs.graphs), **mask_inputs(inputs.masks)
    )
    made = {"box": str(box), "segmentation": "agglomerated", "abstained": abstained, "sweep": rows}
    write_json(out, {**made, "provenance": made_by})
    forget_blocks(out)


def sweep_step(
    table: ContingencyTable, scores: np.ndarray, threshold: float, constraints: Constraints = NOTHING_GIVEN
) -> dict[str, dict[str, Any]]:
    """Score the segmentation that `threshold` would give."""
    base_ids, group_ids = merge_groups(scores, threshold, constraints)
    joined = merge_tables([ContingencyTable(table.a, apply_groups(table.b, base_ids, group_ids), table.voxels)])
    merges = {
        "threshold": threshold,
        "num_merges": int((base_ids != group_ids).sum()),
        "largest_group": int(np.unique(group_ids, return_counts=True)[1].max(initial=1)),
    }
    return {name: {**merges, **score(joined, name)} for name in SWEPT_CONVENTIONS}
