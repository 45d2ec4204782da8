"""Join overlapping subvolumes into one volume. Ids that match in the overlaps get the same global id."""

from __future__ import annotations

import argparse

from ffn.config import ReconcileConfig
from ffn.io.volume import split_spec
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "files of ffn segment; the dataset is 'segmentation' unless given as FILE.h5:DATASET"
    parser.add_argument("subvolumes", nargs="+", metavar="FILE.h5", help=text)
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    add_options(parser, ReconcileConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.assembly.reconcile import reconcile

    specs = [spec if split_spec(spec)[1] else f"{spec}:segmentation" for spec in arguments.subvolumes]
    reconcile(specs, arguments.out, from_arguments(ReconcileConfig, arguments))
