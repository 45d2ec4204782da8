"""The precision that trains fastest here, where the options leave it to `auto`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ffn.config import ModelConfig
from ffn.machine.gpu import gpu_visible
from ffn.machine.pace import calls_per_second
from ffn.model.choice import Choice, choice_name, choose_once
from ffn.model.precision import PRECISIONS, fastest_precision
from ffn.training.config import TrainConfig
from ffn.training.initial import initial_weights
from ffn.training.learners import make_learner
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch


def chosen_precision(config: TrainConfig, model: ModelConfig, machine: Path) -> str:
    """Return the precision of the options; for ``auto``, the one that is fastest here or was chosen before.

    Parameters
    ----------
    config : TrainConfig
        Options.
    model : ModelConfig
        Architecture.
    machine : Path
        Folder in which the choice is recorded, so that a training resumes with it on any machine.

    Raises
    ------
    ConfigError
        If a GPU was chosen and there is none here.
    """
    if config.precision != "auto":
        return config.precision
    path = machine / choice_name("training", "tensorflow", "auto", model)
    return choose_once(path, lambda: _choose(config, model)).precision


def _choose(config: TrainConfig, model: ModelConfig) -> Choice:
    on_gpu = gpu_visible()
    precision, reason = fastest_precision(on_gpu, lambda: fovs_per_second(config, model))
    return Choice("tensorflow", precision, reason, on_gpu)


def fovs_per_second(config: TrainConfig, model: ModelConfig) -> dict[str, float]:
    """Train the network in every precision, in turn, in this process alone; return FOVs/s by precision."""
    steps = {name: step_on_noise(config, model, name) for name in PRECISIONS}
    return {name: config.batch_size * rate for name, rate in calls_per_second(steps).items()}


def step_on_noise(config: TrainConfig, model: ModelConfig, precision: str) -> Callable[[], object]:
    """Return a function that makes one step on one batch of noise, without the other processes of the job."""
    alone = config.model_copy(update={"num_workers": 1, "virtual_workers": 1, "precision": precision})
    learner = make_learner(model, alone, initial_weights(model, rng_seed=0), ProcessGroup())
    shape = (2, config.batch_size, *model.fov_size_zyx)
    image, pom = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    batch = Batch(image, pom, (image > 0).astype(np.float32), np.ones_like(image))
    return lambda: learner.step(batch, config.learning_rate)
