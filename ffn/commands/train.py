"""Train an FFN on records of coordinates, as --num-workers processes of horovodrun, srun, mpirun or aprun.

An interrupted run that is started again with the same options goes on from its newest checkpoint.
"""

from __future__ import annotations

import argparse

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.options import add_options, add_staging_option, from_arguments, whole_number
from ffn.training.config import TrainConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn train``."""
    parser.add_argument("--records", required=True, metavar="FOLDER", help="what 'ffn records' wrote")
    parser.add_argument(
        "--volume",
        required=True,
        action="append",
        metavar="NAME=IMAGE,LABELS",
        help="image and labels, each FILE.h5:DATASET, by the name that the records use; repeat for more",
    )
    parser.add_argument("--init", metavar="MODEL_DIR", help="model to start from; it decides the model options")
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="model folder to write, or to go on with")
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="of everything random (default: 1)"
    )
    add_staging_option(parser)
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.training.plan import TrainingData
    from ffn.training.train import train

    data = TrainingData(arguments.records, _volumes(arguments.volume))
    model, config = from_arguments(ModelConfig, arguments), from_arguments(TrainConfig, arguments)
    train(data, arguments.out, model, config, arguments.rng_seed, arguments.init, arguments.stage_to)


def _volumes(items: list[str]) -> dict[str, tuple[str, str]]:
    """Image and labels by name, from ``NAME=IMAGE,LABELS``."""
    volumes: dict[str, tuple[str, str]] = {}
    for item in items:
        name, equals, specs = item.partition("=")
        image, comma, labels = specs.partition(",")
        if not (name and equals and image and comma and labels):
            raise ConfigError(
                f"--volume: {item!r} is not of the form NAME=IMAGE,LABELS, as in a=raw.h5:raw,labels.h5:a"
            )
        if name in volumes:
            raise ConfigError(f"--volume: {name!r} is given twice, expected each volume once")
        volumes[name] = (image, labels)
    return volumes
