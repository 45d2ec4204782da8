"""Assign unsegmented voxels to the segments around them, by a seeded watershed of the smoothed image.

The input is not changed. Voxels beyond the maximum distance stay unsegmented.
"""

from __future__ import annotations

import argparse

from ffn.config import FillConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="labels, FILE.h5:DATASET")
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, FILE.h5:DATASET")
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 filled segmentation")
    add_options(parser, FillConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.assembly.fill import fill

    fill(arguments.segmentation, arguments.image, arguments.out, from_arguments(FillConfig, arguments))
