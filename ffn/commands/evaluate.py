"""Score a segmentation and a baseline against the ground truth: ARE, VOI, coverage, run length, worst errors."""

from __future__ import annotations

import argparse

from ffn.errors import ConfigError
from ffn.evaluation.config import EvaluateConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="labels to score")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="labels of the ground truth")
    parser.add_argument(
        "--skeletons",
        metavar="PATH",
        help="skeletons of the ground truth, for the expected run length: a file of 'ffn skeletonize', a folder of SWC "
        "files (x, y, z in nm), or a precomputed folder",
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores; two CSV files are added")
    group = parser.add_argument_group("baseline")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--image", metavar="VOLUME", help="image to segment by watershed; the best of a sweep is scored")
    one.add_argument("--baseline", metavar="VOLUME", help="segmentation to score instead of a watershed")
    group.add_argument("--baseline-out", metavar="FILE.h5:DATASET", help="save the best watershed of --image")
    add_options(parser, EvaluateConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.evaluation.evaluate import References, evaluate

    if arguments.baseline_out and not arguments.image:
        raise ConfigError(f"--baseline-out: {arguments.baseline_out} is for a watershed, which needs --image")
    config = from_arguments(EvaluateConfig, arguments)
    image = arguments.image if config.watershed else None
    references = References(image, arguments.baseline, arguments.baseline_out, arguments.skeletons)
    evaluate(arguments.segmentation, arguments.truth, arguments.out, config, arguments.box, references)
