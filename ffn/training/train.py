"""Stage `train`: join the processes, check the inputs, train, write the model."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ffn.config import ModelConfig
from ffn.errors import ConfigError, TrainError
from ffn.machine.gpu import keep_programs
from ffn.machine.processes import take_lock
from ffn.machine.schedulers import launched_rank, local_place
from ffn.model.choice import ASKED_FOR, FOLDER, Choice, choice_name, choose_once, sees_gpu, with_precision
from ffn.model.store import DESCRIPTION, WEIGHTS, save_model
from ffn.options import add_options, from_arguments
from ffn.provenance import provenance
from ffn.training import loop
from ffn.training.checkpoint import architecture_of
from ffn.training.config import TrainConfig, are_matched, fine_tuning_defaults
from ffn.training.data.volumes import TrainingVolume, open_training_volumes, tissue_of, with_contrast
from ffn.training.metrics import is_row_log
from ffn.training.parallel.joining import MEETING_SECONDS, configure_libraries, process_group
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.parallel.serving import LOOK_SECONDS, Link, connect
from ffn.training.plan import (
    Training,
    TrainingPlan,
    add_data_arguments,
    choose_model,
    make_training_plan,
    require_network,
    training_data,
    with_normalisation,
)
from ffn.training.validation import ValidationBox, make_validation

LOCK_SECONDS = 120.0  # for the last step, validation and checkpoint of a training that is ending; our choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Train an FFN on records, as --num-workers processes of ffn launch, srun, mpirun or aprun.

    The same command resumes an interrupted run from its newest checkpoint.

    example:
      ffn launch -n 2 -- ffn train --records records/ --volume demo=raw.zarr,labels.zarr --out model/
    """
    add_data_arguments(parser)
    parser.add_argument(
        "--init",
        metavar="MODEL_DIR",
        help="model folder or checkpoint (checkpoints/step-…) to start from; sets model options that are not given, "
        "except the normalisation, which is measured anew unless volumes are matched",
    )
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="model folder to write, or to resume")
    add_options(parser, ModelConfig)
    add_options(parser, TrainConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    data = training_data(arguments, arguments.validate)
    model, config = from_arguments(ModelConfig, arguments), _train_config(arguments)
    train(Training(data, model, config, arguments.rng_seed, arguments.init), arguments.out)


def _train_config(arguments: argparse.Namespace) -> TrainConfig:
    """Return the options, with the defaults of fine-tuning where training starts from a model."""
    config = from_arguments(TrainConfig, arguments)
    if not arguments.init:
        return config
    defaults = fine_tuning_defaults(config, bool(arguments.validate))
    return config.model_copy(update={name: defaults[name] for name in defaults.keys() - config.model_fields_set})


def train(training: Training, out_folder: str, machine: str | None = None) -> None:
    """Train a network. Every process of the job calls this.

    An interrupted run resumes from its newest usable checkpoint and ends with the same weights.

    The model folder holds ``model.yaml``, ``weights.h5``, ``checkpoints/``, ``metrics.csv`` and ``validation.csv``.
    What ``auto`` takes as engine and precision is recorded in `machine`, by default a folder in the model folder; a
    training that resumes elsewhere takes the same.

    Raises
    ------
    FfnError
        If data, model and options do not fit together, or training cannot continue.
    """
    folder = Path(out_folder)
    names = [name for name in (DESCRIPTION, WEIGHTS, "metrics.csv", "validation.csv") if (folder / name).exists()]
    if names and not is_row_log(folder / "metrics.csv"):
        raise TrainError(f"{folder}: holds {names[0]!r} of no training here, expected none. Choose another --out")
    with training_job(training) as (group, plan, opened):
        boxes = {name: ValidationBox(opened[name], source.box) for name, source in training.data.validation.items()}
        validation = make_validation(boxes, plan.initial.config, plan.train, plan.rng_seed, group)
        plan.load_records(group)  # the last check, because it takes longest
        is_served = plan.train.max_steps > 0 and not plan.train.is_synchronous
        role = served_in(folder, plan) if is_served else alone_in(out_folder, group)
        with role as link:
            plan = with_engine(plan, Path(machine or f"{out_folder}/{FOLDER}"), group)
            with loop.Interruption() as interruption:
                if link:
                    return loop.contribute(plan, link, folder, group, interruption)
                step, weights = loop.run(plan, validation, folder, group, interruption)
            if group.rank == 0:
                origin = _origin(training, plan.train, step)
                save_model(out_folder, dataclasses.replace(plan.initial, weights=weights, provenance=origin))
            group.barrier()


@contextlib.contextmanager
def training_job(training: Training) -> Iterator[tuple[ProcessGroup, TrainingPlan, Mapping[str, TrainingVolume]]]:
    """Join the processes and check the inputs for the length of a ``with`` block; also yield all open volumes."""
    data, model, config, rng_seed, init = training
    with contextlib.ExitStack() as stack:
        if config.is_synchronous:
            group = stack.enter_context(process_group(config.num_workers, config.stall_seconds, config.collective))
        else:  # it has nothing to do with others but to share the cores and GPUs of this machine
            group = ProcessGroup()
            group.local_rank, group.local_size = local_place()
        if _computes(config):
            configure_libraries(group, config, rng_seed)
        group.watch()
        sources = {name: (one.image, one.labels) for name, one in data.validation.items()} | dict(data.volumes)
        opened = group.together(lambda: stack.enter_context(open_training_volumes(sources, data.masks)))
        for volume in opened.values():
            volume.load(group)
        volumes = {name: opened[name] for name in data.volumes}
        methods = {name: data.normalize.get(name, "training") for name in opened}
        remeasures = config.max_steps > 0 and not are_matched(methods, model)
        initial = group.together(lambda: choose_model(model, init, rng_seed, remeasures, config.initial))
        initial = with_normalisation(initial, volumes, group)
        initial = with_contrast(initial, opened, volumes, data.normalize, group)
        if config.max_steps:
            tissue = group.together(lambda: tissue_of(volumes) if group.rank == 0 else None)  # it writes the model
            initial = dataclasses.replace(initial, trained_on=tissue)
        plan = group.together(lambda: make_training_plan(data, volumes, initial, config, rng_seed))
        yield group, plan, opened


def _computes(config: TrainConfig) -> bool:
    """Whether a training needs TensorFlow, which takes seconds to load."""
    return config.max_steps > 0 or config.num_workers > 1


def with_engine(plan: TrainingPlan, machine: Path, group: ProcessGroup) -> TrainingPlan:
    """Let rank 0 choose engine and precision for all processes, and write the choice down."""
    if not _computes(plan.train):
        return plan
    wanted, model = plan.train, plan.initial.config
    choice = group.together(lambda: chosen_engine(wanted, model, machine) if group.rank == 0 else None)
    engine, precision = group.broadcast((choice.engine, choice.precision) if choice else ("", ""))
    if engine == "jax":
        keep_programs(machine)
    train = wanted.model_copy(update={"engine": engine, "precision": precision})
    return dataclasses.replace(plan, train=train)


def chosen_engine(config: TrainConfig, model: ModelConfig, machine: Path) -> Choice:
    """Return engine and precision of the options; for ``auto``, those that are fastest here or were chosen before."""
    if "auto" not in (config.engine, config.precision):
        return Choice(config.engine, config.precision)
    path = machine / choice_name("training", config.engine, config.precision, model)
    return choose_once(path if config.precision == "auto" else None, lambda: _choose(config))


def _choose(config: TrainConfig) -> Choice:
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _library()
    return with_precision(engine, reason, config.precision)


def _library() -> tuple[str, str]:
    """Take JAX only on GPUs that it alone can use: on CPUs, its convolutions are slow."""
    if sees_gpu("tensorflow"):
        return "tensorflow", "TensorFlow sees a GPU"
    return ("jax", "JAX alone sees a GPU") if sees_gpu("jax") else ("tensorflow", "no GPU is visible")


@contextlib.contextmanager
def served_in(folder: Path, plan: TrainingPlan) -> Iterator[Link | None]:
    """Join the training that a process serves in a folder; be that process if this is rank 0 and there is none."""
    launch = launched_rank()
    may_serve = launch is None or launch.rank == 0
    deadline = time.monotonic() + MEETING_SECONDS
    lock = None
    while not (link := connect(folder, plan.identity())):
        if may_serve:
            try:
                lock = take_lock(folder)
                break
            except ConfigError:  # another process works there: it may serve soon, or end
                if time.monotonic() > deadline or not os.access(folder, os.W_OK):
                    raise
        elif time.monotonic() > deadline:
            raise TrainError(f"{folder}: rank 0 did not serve for {MEETING_SECONDS} s. See its errors")
        time.sleep(LOOK_SECONDS)
    with contextlib.closing(link) if link else lock or contextlib.nullcontext():
        if not link and launch and launch.size not in (None, 1, plan.train.num_processes):
            found = f"found a job of {launch.size} processes, expected {plan.train.num_processes}"
            raise TrainError(f"train.gradients_per_update: {found}: rank 0, which serves, and num_workers")
        yield link


@contextlib.contextmanager
def alone_in(folder: str, group: ProcessGroup) -> Iterator[None]:
    """Keep other trainings out of a folder for the length of a ``with`` block.

    If the launcher of an earlier training was killed, wait for its processes to write their last checkpoint.
    """
    lock = group.together(lambda: take_lock(folder, LOCK_SECONDS) if group.rank == 0 else None)
    with lock or contextlib.nullcontext():
        yield


def _origin(training: Training, config: TrainConfig, step: int) -> dict[str, Any]:
    """Provenance of a model with the weights after `step` steps; `config` has the engine that was chosen."""
    data = training.data
    given: dict[str, object] = {
        "init": training.init,
        "validation": " ".join(f"{name}={','.join(map(str, one))}" for name, one in data.validation.items()),
        "normalize": " ".join(f"{name}={method}" for name, method in data.normalize.items()),
        "masks": " ".join(f"{name}={mask}" for name, masks in data.masks.items() for mask in masks),
        "best_step": step if config.use_best else None,
        "reproducible": None if config.is_synchronous else "no: gradients were taken as they came",
    }
    return provenance(
        "train",
        config,
        records=data.records,
        volumes=" ".join(f"{name}={image},{labels}" for name, (image, labels) in data.volumes.items()),
        rng_seed=training.rng_seed,
        **{name: value for name, value in given.items() if value not in (None, "")},
    )


def check(init: str, model: ModelConfig, is_trained: bool) -> None:
    """Refuse weights that are not there or do not fit."""
    if Path(init + ".index").is_file():
        if not is_trained and (model.image_mean is None or model.image_stddev is None):
            found = "null, but a checkpoint does not record how its images were normalised"
            raise ConfigError(f"model.image_mean, model.image_stddev: {found}. Give both (FIB-25: 128 and 33)")
        return
    if not Path(init).is_dir():
        raise ConfigError(f"init: {init!r} is neither a model folder nor a checkpoint's prefix. Check the path")
    require_network(model, architecture_of(init), init)
