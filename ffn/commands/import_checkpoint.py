"""Stage `import-checkpoint`: make a model folder of a checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from ffn.config import ModelConfig
from ffn.options import add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Convert a checkpoint to a model folder: a published TensorFlow 1 FFN, or a checkpoint of 'ffn train'.

    Depth and features come from the checkpoint. One of 'ffn train' also holds FOV, deltas and normalisation.
    """
    parser.add_argument(
        "checkpoint",
        metavar="PREFIX_OR_DIR",
        help="model.ckpt-27465036 (without suffix), or step-00000500 of 'ffn train'",
    )
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="model folder to write")
    add_options(parser, ModelConfig, skip=("depth", "features"))
    # the only published weights of this architecture are those for FIB-25
    parser.set_defaults(image_mean="128", image_stddev="33")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    path = Path(arguments.checkpoint)
    if path.is_dir() or path.name.startswith("step-"):
        from ffn.training.checkpoint_files import export_checkpoint

        export_checkpoint(arguments.checkpoint, arguments.out)
        return
    from ffn.model.published import import_checkpoint

    import_checkpoint(arguments.checkpoint, arguments.out, from_arguments(ModelConfig, arguments))
