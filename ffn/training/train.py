"""The `train` stage: start the processes, check everything, train, write the model."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

from ffn.config import ModelConfig
from ffn.model.precision import gpu_visible, resolve_precision
from ffn.model.store import Model, save_model
from ffn.provenance import provenance
from ffn.staging import stage_specs, staged_spec
from ffn.training.config import TrainConfig
from ffn.training.distributed import ProcessGroup, process_group
from ffn.training.loop import run
from ffn.training.plan import TrainingData, choose_model, make_plan, with_normalisation
from ffn.training.step import configure_tensorflow
from ffn.training.volumes import open_training_volumes


def train(
    data: TrainingData,
    out_folder: str,
    model: ModelConfig,
    config: TrainConfig,
    rng_seed: int,
    init_folder: str | None = None,
    stage_to: str | None = None,
) -> None:
    """Train a network; every process of the job calls this.

    An interrupted run goes on from its newest usable checkpoint and ends with the same weights.

    Parameters
    ----------
    data : TrainingData
        Records and volumes.
    out_folder : str
        Model folder: ``model.yaml``, ``weights.h5``, ``checkpoints/``, ``metrics.csv``, ``tensorboard/``.
    model : ModelConfig
        Architecture; with `init_folder`, what is given explicitly must agree with it.
    config : TrainConfig
        Options.
    rng_seed : int
        Seed of everything random.
    init_folder : str, optional
        Model folder to start from; none draws new weights.
    stage_to : str, optional
        Node-local folder, to which records and volumes are copied first, once per node.

    Raises
    ------
    FfnError
        If data, model or options do not fit together, or training cannot go on.
    """
    with process_group(config.num_workers) as group, contextlib.ExitStack() as stack:
        if group.size > 1:  # its calls run TensorFlow, whose threads cannot be set any more after that
            configure_tensorflow(group, rng_seed)
        precision = group.broadcast(resolve_precision(config.precision, gpu_visible()))
        config = config.model_copy(update={"precision": precision})
        near = group.together(lambda: _staged(data, stage_to, group)) if stage_to else data
        volumes = group.together(lambda: stack.enter_context(open_training_volumes(near.volumes)))
        initial = group.broadcast(group.together(lambda: choose_model(model, init_folder, rng_seed)))
        initial = with_normalisation(initial, volumes, group)
        plan = group.together(lambda: make_plan(near, volumes, initial, config, rng_seed))
        weights = run(plan, Path(out_folder), group)
        if group.rank == 0:
            save_model(out_folder, Model(initial.config, weights, _origin(data, config, rng_seed, init_folder)))
        group.barrier()


def _staged(data: TrainingData, folder: str, group: ProcessGroup) -> TrainingData:
    """Copy the inputs to the node, once, and return where they are to be read."""
    if group.local_rank == 0:
        stage_specs([data.records, *itertools.chain(*data.volumes.values())], folder)
    group.barrier()
    volumes = {name: (staged_spec(a, folder), staged_spec(b, folder)) for name, (a, b) in data.volumes.items()}
    return TrainingData(staged_spec(data.records, folder), volumes)


def _origin(data: TrainingData, config: TrainConfig, rng_seed: int, init_folder: str | None) -> dict[str, Any]:
    """Provenance of the model."""
    volumes = " ".join(f"{name}={image},{labels}" for name, (image, labels) in data.volumes.items())
    inputs = {"records": data.records, "volumes": volumes, "rng_seed": rng_seed}
    return provenance("train", config, **inputs, **({"init": init_folder} if init_folder else {}))
