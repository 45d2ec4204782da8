"""List the voxels that may be the centre of a training example: in a partition, away from membranes and border."""

from __future__ import annotations

import argparse

from ffn.config import CoordinatesConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partitions", required=True, metavar="VOLUME", help="from 'ffn partition', FILE.h5:DATASET")
    parser.add_argument(
        "--membrane", metavar="FILE.h5", help="from 'ffn membrane' (default: keep voxels near membranes)"
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="tables of coordinates, one for each partition")
    add_options(parser, CoordinatesConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.sampling.coordinates import coordinates

    config = from_arguments(CoordinatesConfig, arguments)
    coordinates(arguments.partitions, arguments.membrane, arguments.out, config, arguments.box)
