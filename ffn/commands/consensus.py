"""Split-biased consensus of two segmentations: voxels stay together only where both put them together.

Made for two runs that differ in the order of seeds: a merger is rarely made twice at the same place. What it splits too
much is for agglomeration to join. Ids are those of A; the parts that a segment of A loses get new ones.
"""

from __future__ import annotations

import argparse

from ffn.config import ConsensusConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn consensus``."""
    parser.add_argument("a", metavar="A", help="labels, FILE.h5:DATASET; the result keeps its ids and its background")
    parser.add_argument("b", metavar="B", help="labels of the same box")
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    add_options(parser, ConsensusConfig, skip=("enabled",))


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.assembly.consensus import consensus

    consensus(arguments.a, arguments.b, arguments.out, from_arguments(ConsensusConfig, arguments))
