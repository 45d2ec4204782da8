"""Score which touching segments are one object: the network grows both sides of every contact in a small window.

The base segmentation is not changed. 'ffn merge' applies the graph, and 'ffn sweep' scores every threshold.
"""

from __future__ import annotations

import argparse

from ffn.config import AgglomerateConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "base segmentation FILE.h5:DATASET of ffn segment, reconcile or consensus"
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help=text)
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, FILE.h5:DATASET")
    parser.add_argument("--model", required=True, metavar="DIR", help="trained model")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="merge graph to write")
    add_box_option(parser)
    add_options(parser, AgglomerateConfig, skip=("enabled", "job_size_zyx"))


def run(arguments: argparse.Namespace) -> None:
    from ffn.assembly.agglomerate import agglomerate

    config = from_arguments(AgglomerateConfig, arguments)
    agglomerate(arguments.segmentation, arguments.image, arguments.model, arguments.out, config, arguments.box)
