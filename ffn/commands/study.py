"""`ffn study`: trainings and evaluations of the studies of distributed training."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from ffn.config import ModelConfig, Section
from ffn.errors import ConfigError
from ffn.options import Parser, add_options, from_arguments
from ffn.studies.config import CurvesConfig, MeasureConfig, RatesConfig, ScalingConfig, StalenessConfig
from ffn.studies.runs import study_curves, study_learning_rate, train_point
from ffn.studies.scaling import measure, study_scaling
from ffn.studies.staleness import study_staleness
from ffn.training.config import TrainConfig
from ffn.training.plan import Training, add_data_arguments, training_data

METRICS = "metrics of all runs, named workers-W-rate-R-seed-S.csv, or without rate-R if trained at the best rate"
OUT = "numbers to write; the figure gets the same name with .png"
TRAINING = "data, network and training, as 'ffn train' takes them: --records, --volume, --depth, --max-steps, …"


class Study(NamedTuple):
    """A study that is computed from files: how these are called, and whether it needs other studies."""

    function: Callable[..., None]
    config: type[Section]
    summary: str
    metavar: str = "FILE.csv"
    files: str = METRICS
    needs_others: bool = False


TIMES = ("FILE.h5", "output of 'ffn study measure'")
STUDIES = {
    "scaling": Study(
        study_scaling, ScalingConfig, "throughput: measured here, modelled on many nodes (Fig. 3)", *TIMES
    ),
    "learning-rate": Study(study_learning_rate, RatesConfig, "best learning rate for each number of workers (Fig. 4)"),
    "curves": Study(study_curves, CurvesConfig, "training curves, cost of an F1 score (Fig. 5, 6)", needs_others=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Study how training scales with the number of processes, the learning rate and the number of workers.

    Usually the workflow calls these commands: snakemake study_scaling, study_learning_rate, study_curves,
    study_staleness. All except `train` and `measure` write FILE.json and FILE.png.

    example:
      ffn study scaling measure-1.h5 measure-2.h5 --out scaling.json
    """
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    train = kinds.add_parser("train", help="do one training run of the studies")
    rates = "output of 'ffn study learning-rate': train at its best rate"
    train.add_argument("--rates", metavar="FILE.json", help=rates)
    train.add_argument("--runs", required=True, metavar="FOLDER", help="folder for the run's model folder")
    train.add_argument("--out", required=True, metavar="FILE.csv", help="metrics to write; short if training diverges")
    text = "measure step times of real processes; run it under ffn launch, srun, mpirun or aprun"
    measure = kinds.add_parser("measure", help=text)
    measure.add_argument("--out", required=True, metavar="FILE.h5", help="times to write")
    add_options(measure, MeasureConfig)
    text = "compare synchronous, backup and asynchronous workers in virtual time; --virtual-workers are the most"
    staleness = kinds.add_parser("staleness", help=text, description=text)
    staleness.add_argument("--out", required=True, metavar="FILE.json", help=OUT)
    times = "output of 'ffn study measure': times of a gradient (default: the nodes of Dong et al. 2019)"
    staleness.add_argument("--measured", metavar="FILE.h5", help=times)
    add_options(staleness, StalenessConfig)
    for command in (train, measure, staleness):
        command.add_argument("training", nargs=argparse.REMAINDER, metavar="-- TRAINING", help=TRAINING)
    for name, study in STUDIES.items():
        _add_study(kinds.add_parser(name, help=study.summary, description=study.summary), study)


def _add_study(parser: argparse.ArgumentParser, study: Study) -> None:
    parser.add_argument("files", nargs="+", metavar=study.metavar, help=study.files)
    parser.add_argument("--out", required=True, metavar="FILE.json", help=OUT)
    if study.needs_others:
        for other, command in (("--rates", "learning-rate"), ("--scaling", "scaling")):
            parser.add_argument(other, required=True, metavar="FILE.json", help=f"output of 'ffn study {command}'")
    add_options(parser, study.config)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if arguments.kind not in STUDIES:
        _run_trainings(arguments)
        return
    study = STUDIES[arguments.kind]
    others = {"rates": arguments.rates, "scaling": arguments.scaling} if study.needs_others else {}
    study.function(arguments.files, arguments.out, from_arguments(study.config, arguments), **others)


def _run_trainings(arguments: argparse.Namespace) -> None:
    given = _training(arguments)
    model, train = from_arguments(ModelConfig, given), from_arguments(TrainConfig, given)
    if not train.is_synchronous:
        found = f"train.gradients_per_update: found {train.gradients_per_update}, max_staleness {train.max_staleness}"
        raise ConfigError(f"{found}, expected all and 0 in a study. 'ffn study staleness' compares the other ways")
    data = training_data(given, given.validate or None)
    training = Training(data, model, train, given.rng_seed)
    if arguments.kind == "train":
        train_point(training, arguments.runs, arguments.out, arguments.rates)
    elif arguments.kind == "staleness":
        study_staleness(training, arguments.out, arguments.measured, from_arguments(StalenessConfig, arguments))
    else:
        measure(training, arguments.out, from_arguments(MeasureConfig, arguments).measured_steps)


def _training(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options after ``--``."""
    parser = Parser(prog=f"ffn study {arguments.kind} --")
    add_data_arguments(parser)
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)
    words = arguments.training
    return parser.parse_args(words[words[:1] == ["--"] :])
