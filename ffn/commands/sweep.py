"""Score the merge graph at every threshold against the truth: how many splits it mends, and what it merges."""

from __future__ import annotations

import argparse

from ffn.evaluation.config import SweepConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn sweep``."""
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="base segmentation, FILE.h5:DATASET")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="labels")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="table to write")
    add_box_option(parser)
    add_options(parser, SweepConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.evaluation.sweep import sweep

    config = from_arguments(SweepConfig, arguments)
    sweep(arguments.segmentation, arguments.truth, arguments.graphs, arguments.out, config, arguments.box)
