"""Join the segments whose edges in the merge graph reach the threshold. The base segmentation is not changed."""

from __future__ import annotations

import argparse

from ffn.config import MergeConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graphs", nargs="+", metavar="GRAPH.csv", help="files of ffn agglomerate")
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="base segmentation, FILE.h5:DATASET")
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    parser.add_argument("--mapping", metavar="FILE.csv", help="also write base_id,group_id of every joined segment")
    add_options(parser, MergeConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.assembly.merge import merge

    config = from_arguments(MergeConfig, arguments)
    merge(arguments.segmentation, arguments.graphs, arguments.out, arguments.mapping, config)
