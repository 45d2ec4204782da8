"""Stage `import-checkpoint`: make a model folder of a checkpoint."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ffn.config import ModelConfig
from ffn.model.store import import_published, load_model, save_model
from ffn.options import add_options, from_arguments
from ffn.provenance import provenance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Convert a checkpoint to a model folder: a published TensorFlow 1 FFN, or a checkpoint or model of 'ffn train'.

    Depth and features come from the checkpoint. One of 'ffn train' also holds normalisation, FOV and deltas; options
    replace these two.

    example:
      ffn import-checkpoint model.ckpt-27465036 --out model/
    """
    parser.add_argument(
        "checkpoint",
        metavar="PREFIX_OR_DIR",
        help="model.ckpt-27465036 (without suffix), or step-00000500 of 'ffn train'",
    )
    parser.add_argument(
        "--trained",
        metavar="MODEL_DIR",
        help="result of a training that started from these weights, a model folder: write them with its network and "
        "grey levels, to compare both",
    )
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="model folder to write")
    add_options(parser, ModelConfig, skip=("depth", "features"))
    # the only published weights of this architecture are those for FIB-25
    parser.set_defaults(image_mean="128", image_stddev="33")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    path = Path(arguments.checkpoint)
    if arguments.trained:
        trained, start = load_model(arguments.trained), arguments.checkpoint
        origin = provenance("import-checkpoint", trained.config, checkpoint=start)
        save_model(arguments.out, replace(trained, weights=load_model(start).weights, provenance=origin))
        return
    if path.is_dir() or path.name.startswith("step-"):
        from ffn.training.checkpoint import export_checkpoint, is_checkpoint

        source, is_model = arguments.checkpoint, path.is_dir() and not is_checkpoint(path)
        if not is_model:
            export_checkpoint(source, arguments.out)
        sizes = [name for name in ("fov_size_zyx", "deltas_zyx") if getattr(arguments, name)]
        if is_model or sizes:
            model = load_model(source if is_model else arguments.out)
            own = {name: value for name, value in model.config if name not in sizes}
            config = from_arguments(ModelConfig, arguments, **own)
            origin = provenance("import-checkpoint", config, checkpoint=source)
            save_model(arguments.out, replace(model, config=config, provenance=origin))
        return
    import_published(arguments.checkpoint, arguments.out, from_arguments(ModelConfig, arguments))
