"""Split-biased consensus of two segmentations: voxels stay together only where both agree.

It is meant for two runs with different seed orders, which rarely make the same merger. Agglomeration can join what the
consensus splits too much. Ids are those of A; parts split off from a segment of A get new ids.
"""

from __future__ import annotations

import argparse

from ffn.config import ConsensusConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="labels, FILE.h5:DATASET; the result keeps its ids and background")
    parser.add_argument("b", metavar="B", help="labels of the same box")
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    add_options(parser, ConsensusConfig, skip=("enabled",))


def run(arguments: argparse.Namespace) -> None:
    from ffn.assembly.consensus import consensus

    consensus(arguments.a, arguments.b, arguments.out, from_arguments(ConsensusConfig, arguments))
