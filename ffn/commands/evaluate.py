"""Score a segmentation against the truth: ARE, VOI, coverage, run length, worst errors, beside a baseline."""

from __future__ import annotations

import argparse

from ffn.errors import ConfigError
from ffn.evaluation.config import EvaluateConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn evaluate``."""
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="labels to score")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="labels that are right")
    parser.add_argument(
        "--skeletons",
        metavar="PATH",
        help="of the truth, for the expected run length: a file of 'ffn skeletonize', a folder of SWC files "
        "(x, y, z in nm), or a precomputed folder",
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores; two CSV files go beside it")
    group = parser.add_argument_group("baseline to score beside it")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--image", metavar="VOLUME", help="segment this by the best of a sweep of watersheds")
    one.add_argument("--baseline", metavar="VOLUME", help="score this segmentation instead of a watershed")
    group.add_argument("--baseline-out", metavar="FILE.h5:DATASET", help="keep the best watershed of --image")
    add_options(parser, EvaluateConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.evaluation.evaluate import References, evaluate

    if arguments.baseline_out and not arguments.image:
        raise ConfigError(f"--baseline-out: {arguments.baseline_out} is for a watershed, expected --image too")
    config = from_arguments(EvaluateConfig, arguments)
    image = arguments.image if config.watershed else None
    references = References(image, arguments.baseline, arguments.baseline_out, arguments.skeletons)
    evaluate(arguments.segmentation, arguments.truth, arguments.out, config, arguments.box, references)
