"""Score the merge graph against the ground truth at several thresholds."""

from __future__ import annotations

import argparse

from ffn.evaluation.config import SweepConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="base segmentation, FILE.h5:DATASET")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="labels of the ground truth")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="scores to write")
    add_box_option(parser)
    add_options(parser, SweepConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.evaluation.sweep import sweep

    config = from_arguments(SweepConfig, arguments)
    sweep(arguments.segmentation, arguments.truth, arguments.graphs, arguments.out, config, arguments.box)
