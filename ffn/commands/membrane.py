"""Detect membranes: edges of the image, and the distance of every voxel to the nearest edge."""

from __future__ import annotations

import argparse

from ffn.config import MembraneConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image", required=True, metavar="VOLUME", help="uint8, uint16 or float image, FILE.h5:DATASET"
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="file for the datasets edges and distance")
    add_options(parser, MembraneConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.sampling.membrane import membrane

    membrane(arguments.image, arguments.out, from_arguments(MembraneConfig, arguments), arguments.box)
