"""Skeletonize the bodies of the ground truth, along which 'ffn evaluate --skeletons' measures run length."""

from __future__ import annotations

import argparse

from ffn.evaluation.config import SkeletonizeConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labels", required=True, metavar="VOLUME", help="bodies of the ground truth")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="skeletons to write")
    add_options(parser, SkeletonizeConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.evaluation.skeletonize import skeletonize

    skeletonize(arguments.labels, arguments.out, from_arguments(SkeletonizeConfig, arguments), arguments.box)
