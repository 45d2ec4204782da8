"""`ffn calibrate`: fit the probability that two segments are one neuron."""

from __future__ import annotations

import argparse
import math

import numpy as np
import yaml

from ffn.assembly.calibration import DEFAULT, FEATURES, fit, is_judged, quality
from ffn.assembly.merge_graph import read_graphs
from ffn.evaluation.bodies import best_bodies
from ffn.evaluation.evaluate import common_box
from ffn.evaluation.scoring import tabulate
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.masks import Masks, mask_inputs, open_masked_truth, open_masks
from ffn.io.open import open_segmentation
from ffn.io.volume import require_labels, require_other_file
from ffn.options import add_box_option, add_masks_option, add_volume_option, masks_from
from ffn.provenance import provenance

MIN_SHARE = 0.8  # of a segment's labelled voxels in one body; others are mergers and teach nothing about contacts
MIN_LABELLED = 0.5  # of a segment's voxels; a neuron without labels may reach into a body by some (our choice)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fit the probability that two segments are one neuron to a labelled part of a volume.

    Decision points in --box are fitted; all others are only scored, so that the figures are honest. Points between
    segments that are hardly labelled, or hold several bodies, are left out. 'ffn merge --calibration' and 'ffn sweep
    --calibration' take the file.
    """
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    add_volume_option(parser, "--segmentation", "supervoxels")
    add_volume_option(parser, "--truth", "labels of the ground truth")
    parser.add_argument("--out", required=True, metavar="FILE.yaml", help="coefficients and figures to write")
    parser.add_argument(
        "--penalty",
        type=_penalty,
        default=1.0,
        help="of the squared coefficients; more for fewer points (default: %(default)g)",
    )
    parser.add_argument("--features", nargs="+", choices=sorted(FEATURES), default=DEFAULT, help="default: %(default)s")
    add_box_option(parser)
    add_masks_option(parser)
    parser.set_defaults(function=_run)


def _penalty(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _run(arguments: argparse.Namespace) -> None:
    """Write the calibration of an agglomeration graph as YAML."""
    box, masks = arguments.box, masks_from(arguments)
    require_other_file(arguments.out, arguments.segmentation, arguments.truth, *arguments.graphs)
    edges = [edge for part in read_graphs(arguments.graphs) for edge in part]
    with (
        open_masked_truth(arguments.truth, masks) as truth,
        open_segmentation(arguments.segmentation) as segmentation,
        open_masks(masks, truth.voxel_size_zyx_nm) as masked,
    ):
        require_labels(segmentation)
        table = tabulate(truth.read, segmentation.read, common_box(segmentation, truth, None), (128, 128, 128))
        bodies = best_bodies(table, MIN_SHARE, MIN_LABELLED)
        decided = [e for e in edges if is_judged(e) and e.segment_a in bodies and e.segment_b in bodies]
        known = [e for e in decided if not _is_masked(Box.around((e.z, e.y, e.x)), truth.known, masked)]
    same = np.array([bodies[e.segment_a] == bodies[e.segment_b] for e in known], bool)
    inside = np.array([box is None or box.contains(Box.around((e.z, e.y, e.x))) for e in known], bool)
    fitted = [e for e, use in zip(known, inside, strict=True) if use]
    found = fit(fitted, same[inside], arguments.penalty, tuple(dict.fromkeys(arguments.features)))
    values = found.probabilities(known)
    scores = np.nan_to_num([e.score for e in known])
    figures = {
        name: {"calibrated": quality(values[part], same[part]), "score": quality(scores[part], same[part])}
        for name, part in (("fitted", inside), ("held_out", ~inside))
    }
    inputs = {"segmentation": arguments.segmentation, "truth": arguments.truth, "graphs": len(arguments.graphs)}
    made_by = provenance("calibrate", None, **inputs, box=str(box), **mask_inputs(masks))
    record = {**found.model_dump(), "quality": figures, "provenance": made_by}
    atomic.write_text(arguments.out, yaml.safe_dump(record, sort_keys=False))


def _is_masked(voxel: Box, known: Box, masked: Masks) -> bool:
    """Whether a voxel is masked; segments reach beyond the truth, and masks need not."""
    return known.contains(voxel) and bool(masked.read(voxel).any())
