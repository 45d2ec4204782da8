"""`ffn study`: trainings and evaluations of the studies of distributed training."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ffn.config import ModelConfig
from ffn.options import add_options, from_arguments, whole_number
from ffn.studies.config import StudyConfig
from ffn.training.arguments import add_data_arguments, parse_masks, parse_normalize, parse_volumes
from ffn.training.config import TrainConfig

if TYPE_CHECKING:
    from ffn.training.plan import TrainingData

METRICS = "metrics of all runs, named workers-W-rate-R-seed-S.csv, or without rate-R if trained at the best rate"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Study how training scales with the number of processes, the learning rate and the number of workers.

    Usually the workflow calls these commands: snakemake study_scaling, study_learning_rate, study_rate_range,
    study_curves, study_efficiency. All except `train` and `measure` write FILE.json, FILE.png and FILE.html.
    """
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    _add_train(kinds.add_parser("train", help="do one training run of the studies"))
    _add_measure(
        kinds.add_parser(
            "measure", help="measure step times of real processes; run it under ffn launch, srun, mpirun or aprun"
        )
    )
    scaling = _add_study(kinds, "scaling", "throughput: measured here, modelled on many nodes (Fig. 3)")
    scaling.add_argument("files", nargs="+", metavar="FILE.h5", help="output of 'ffn study measure'")
    rates = _add_study(kinds, "learning-rate", "best learning rate for each number of workers (Fig. 4)")
    rates.add_argument("files", nargs="+", metavar="FILE.csv", help=METRICS)
    rates.add_argument("--rng-seed", type=whole_number, default=1, metavar="INT", help="for resampling (default: 1)")
    ramps = _add_study(kinds, "rate-range", "where the loss falls fastest while the learning rate grows")
    ramps.add_argument("files", nargs="+", metavar="FILE.csv", help="metrics of runs with --schedule ramp")
    for name, text in (("efficiency", "cost of reaching an F1 score (Fig. 5)"), ("curves", "training curves (Fig. 6)")):
        study = _add_study(kinds, name, text)
        study.add_argument("files", nargs="+", metavar="FILE.csv", help=METRICS)
        study.add_argument("--rates", required=True, metavar="FILE.json", help="output of 'ffn study learning-rate'")
        study.add_argument("--scaling", required=True, metavar="FILE.json", help="output of 'ffn study scaling'")
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    """Run the study that the arguments name."""
    {
        "train": _train,
        "measure": _measure,
        "scaling": _scaling,
        "learning-rate": _learning_rate,
        "rate-range": _rate_range,
        "efficiency": _efficiency,
        "curves": _curves,
    }[arguments.kind](arguments)


def _add_study(kinds: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    parser = kinds.add_parser(name, help=text, description=text)
    parser.add_argument(
        "--out", required=True, metavar="FILE.json", help="numbers to write; figure and page get the same name"
    )
    add_options(parser, StudyConfig)
    return parser


def _add_train(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument(
        "--rates", metavar="FILE.json", help="output of 'ffn study learning-rate': train at its best rate"
    )
    parser.add_argument("--runs", required=True, metavar="FOLDER", help="folder for the run's model folder")
    parser.add_argument("--out", required=True, metavar="FILE.csv", help="metrics to write; short if training diverges")
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add_data_arguments(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="times to write")
    add_options(parser, StudyConfig, skip=tuple(StudyConfig.model_fields.keys() - {"measured_steps"}))
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)


def _train(arguments: argparse.Namespace) -> None:
    from ffn.studies.point import train_point

    model, config = from_arguments(ModelConfig, arguments), from_arguments(TrainConfig, arguments)
    places = arguments.runs, arguments.out
    train_point(_training_data(arguments), *places, model, config, arguments.rng_seed, arguments.rates)


def _measure(arguments: argparse.Namespace) -> None:
    from ffn.studies.measure import measure

    model, config = from_arguments(ModelConfig, arguments), from_arguments(TrainConfig, arguments)
    num_steps = from_arguments(StudyConfig, argparse.Namespace(measured_steps=arguments.measured_steps)).measured_steps
    measure(_training_data(arguments), arguments.out, model, config, num_steps, arguments.rng_seed)


def _training_data(arguments: argparse.Namespace) -> TrainingData:
    from ffn.training.plan import TrainingData

    volumes = parse_volumes(arguments.volume)
    methods, masks = parse_normalize(arguments.normalize), parse_masks(arguments.masks)
    return TrainingData(arguments.records, volumes, normalize=methods, masks=masks)


def _scaling(arguments: argparse.Namespace) -> None:
    from ffn.studies.scaling import study_scaling

    study_scaling(arguments.files, arguments.out, from_arguments(StudyConfig, arguments))


def _learning_rate(arguments: argparse.Namespace) -> None:
    from ffn.studies.learning_rate import study_learning_rate

    study_learning_rate(arguments.files, arguments.out, from_arguments(StudyConfig, arguments), arguments.rng_seed)


def _rate_range(arguments: argparse.Namespace) -> None:
    from ffn.studies.rate_range import study_rate_range

    study_rate_range(arguments.files, arguments.out, from_arguments(StudyConfig, arguments))


def _efficiency(arguments: argparse.Namespace) -> None:
    from ffn.studies.efficiency import study_efficiency

    config = from_arguments(StudyConfig, arguments)
    study_efficiency(arguments.files, arguments.rates, arguments.scaling, arguments.out, config)


def _curves(arguments: argparse.Namespace) -> None:
    from ffn.studies.curves import study_curves

    config = from_arguments(StudyConfig, arguments)
    study_curves(arguments.files, arguments.rates, arguments.scaling, arguments.out, config)
