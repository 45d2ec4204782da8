"""`ffn study`: trainings and evaluations of the studies of distributed training."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from ffn.config import ModelConfig, Section
from ffn.options import Parser, add_options, from_arguments
from ffn.studies.config import CurvesConfig, EfficiencyConfig, MeasureConfig, RatesConfig, ScalingConfig
from ffn.training.config import TrainConfig
from ffn.training.plan import add_data_arguments, training_data

METRICS = "metrics of all runs, named workers-W-rate-R-seed-S.csv, or without rate-R if trained at the best rate"
TRAINING = "data, network and training, as 'ffn train' takes them: --records, --volume, --depth, --max-steps, …"


class Study(NamedTuple):
    """A study that is computed from files."""

    config: type[Section]
    summary: str
    files: tuple[str, str]
    needs_others: bool = False


STUDIES = {
    "scaling": Study(
        ScalingConfig,
        "throughput: measured here, modelled on many nodes (Fig. 3)",
        ("FILE.h5", "output of 'ffn study measure'"),
    ),
    "learning-rate": Study(
        RatesConfig, "best learning rate for each number of workers (Fig. 4)", ("FILE.csv", METRICS)
    ),
    "efficiency": Study(EfficiencyConfig, "cost of reaching an F1 score (Fig. 5)", ("FILE.csv", METRICS), True),
    "curves": Study(CurvesConfig, "training curves (Fig. 6)", ("FILE.csv", METRICS), True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Study how training scales with the number of processes, the learning rate and the number of workers.

    Usually the workflow calls these commands: snakemake study_scaling, study_learning_rate, study_curves,
    study_efficiency. All except `train` and `measure` write FILE.json, FILE.png and FILE.html.
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
    for command in (train, measure):
        command.add_argument("training", nargs=argparse.REMAINDER, metavar="-- TRAINING", help=TRAINING)
    for name, study in STUDIES.items():
        _add_study(kinds.add_parser(name, help=study.summary, description=study.summary), study)
    parser.set_defaults(function=_run)


def _add_study(parser: argparse.ArgumentParser, study: Study) -> None:
    metavar, text = study.files
    parser.add_argument("files", nargs="+", metavar=metavar, help=text)
    out = "numbers to write; figure and page get the same name"
    parser.add_argument("--out", required=True, metavar="FILE.json", help=out)
    if study.needs_others:
        for other, command in (("--rates", "learning-rate"), ("--scaling", "scaling")):
            parser.add_argument(other, required=True, metavar="FILE.json", help=f"output of 'ffn study {command}'")
    add_options(parser, study.config)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.kind in ("train", "measure"):
        _train_or_measure(arguments)
        return
    config: Any = from_arguments(STUDIES[arguments.kind].config, arguments)
    files, out = arguments.files, arguments.out
    match arguments.kind:
        case "scaling":
            from ffn.studies.scaling import study_scaling

            study_scaling(files, out, config)
        case "learning-rate":
            from ffn.studies.learning_rate import study_learning_rate

            study_learning_rate(files, out, config)
        case "efficiency":
            from ffn.studies.best_runs import Files, study_efficiency

            study_efficiency(Files(files, arguments.rates, arguments.scaling), out, config)
        case "curves":
            from ffn.studies.best_runs import Files, study_curves

            study_curves(Files(files, arguments.rates, arguments.scaling), out, config)


def _train_or_measure(arguments: argparse.Namespace) -> None:
    from ffn.studies.trainings import measure, train_point
    from ffn.training.plan import Training

    given = _training(arguments)
    data = training_data(given)
    model, train = from_arguments(ModelConfig, given), from_arguments(TrainConfig, given)
    training = Training(data, model, train, given.rng_seed)
    if arguments.kind == "train":
        train_point(training, arguments.runs, arguments.out, arguments.rates)
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
