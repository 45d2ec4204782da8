"""Make a synthetic EM volume with labels: neurites, membranes with weak spots, organelles, noise."""

from __future__ import annotations

import argparse

from ffn.options import add_options, from_arguments, whole_number
from ffn.synthetic.config import SynthConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="N", help="fixes everything random (default: 1)"
    )
    parser.add_argument("--out-image", required=True, metavar="FILE.h5:DATASET", help="uint8 image to write")
    parser.add_argument("--out-labels", required=True, metavar="FILE.h5:DATASET", help="uint64 labels to write")
    add_options(parser, SynthConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.synthetic.write import synth

    synth(arguments.out_image, arguments.out_labels, from_arguments(SynthConfig, arguments), arguments.rng_seed)
