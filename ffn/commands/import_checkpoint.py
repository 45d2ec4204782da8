"""Turn a published TensorFlow 1 FFN checkpoint into a model folder; depth and features are read from it."""

from __future__ import annotations

import argparse

from ffn.config import ModelConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn import-checkpoint``."""
    parser.add_argument("checkpoint", metavar="PREFIX", help="checkpoint without suffix, such as model.ckpt-27465036")
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="model folder to write")
    add_options(parser, ModelConfig, skip=("depth", "features"))
    # the only published weights of this architecture are FIB-25's
    parser.set_defaults(image_mean="128", image_stddev="33")


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.model.published import import_checkpoint

    import_checkpoint(arguments.checkpoint, arguments.out, from_arguments(ModelConfig, arguments))
