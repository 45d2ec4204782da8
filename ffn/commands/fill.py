"""Give unsegmented voxels to the segments around them, by a seeded watershed on the smoothed image.

The input stays as it is, so filling can be undone; what is farther than the maximal distance stays empty.
"""

from __future__ import annotations

import argparse

from ffn.config import FillConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn fill``."""
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="labels, FILE.h5:DATASET")
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, FILE.h5:DATASET")
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 filled segmentation")
    add_options(parser, FillConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.assembly.fill import fill

    fill(arguments.segmentation, arguments.image, arguments.out, from_arguments(FillConfig, arguments))
