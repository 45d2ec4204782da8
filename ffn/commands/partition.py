"""Sort labelled voxels by the fraction of their local object mask (LOM) that belongs to the same object."""

from __future__ import annotations

import argparse

from ffn.config import PartitionConfig
from ffn.options import add_box_option, add_options, from_arguments, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labels", required=True, metavar="VOLUME", help="ground truth, FILE.h5:DATASET")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint8 partitions")
    text = "threads that count; 0 takes all cores of the job (default: 0)"
    parser.add_argument("--threads", type=whole_number, default=0, metavar="INT", help=text)
    add_options(parser, PartitionConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.sampling.partition import partition

    config = from_arguments(PartitionConfig, arguments)
    partition(arguments.labels, arguments.out, config, arguments.box, arguments.threads)
