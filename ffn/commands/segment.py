"""Flood-fill one box of an image: grow an object from every seed until the network finds no more of it."""

from __future__ import annotations

import argparse

from ffn.config import SegmentConfig
from ffn.options import add_box_option, add_options, add_staging_option, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, FILE.h5:DATASET")
    parser.add_argument("--model", required=True, metavar="MODEL_DIR", help="trained or imported model")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    add_staging_option(parser)
    add_options(parser, SegmentConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.inference.segment import segment

    config = from_arguments(SegmentConfig, arguments)
    segment(arguments.image, arguments.model, arguments.out, config, arguments.box, arguments.stage_to)
