"""Join overlapping subvolumes into one volume: ids that match in the overlaps become one global id."""

from __future__ import annotations

import argparse

from ffn.config import ReconcileConfig
from ffn.io.volume import split_spec
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn reconcile``."""
    text = "files of ffn segment, dataset 'segmentation' unless FILE.h5:DATASET says otherwise"
    parser.add_argument("subvolumes", nargs="+", metavar="FILE.h5", help=text)
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="uint64 segmentation")
    add_options(parser, ReconcileConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.assembly.reconcile import reconcile

    specs = [spec if split_spec(spec)[1] else f"{spec}:segmentation" for spec in arguments.subvolumes]
    reconcile(specs, arguments.out, from_arguments(ReconcileConfig, arguments))
