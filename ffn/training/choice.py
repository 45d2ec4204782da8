"""The engine and precision that train fastest here, where the options leave them to `auto`, and the learner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ffn.config import ModelConfig
from ffn.machine.jax_device import require_jax
from ffn.model.choice import (
    ASKED_FOR,
    PRECISIONS,
    Choice,
    calls_per_second,
    choice_name,
    choose_once,
    sees_gpu,
    with_precision,
)
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, patch_size
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.step import Learner
from ffn.training.walk import HostPatches, Patches


def make_learner(
    model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
) -> Learner:
    """Return the learner of the engine that the options name, not ``auto``; see `Learner` for the parameters."""
    if train.engine == "jax":
        require_jax()
        from ffn.training.jax_learner import JaxLearner

        return JaxLearner(model, train, weights, group, rng_seed)
    from ffn.training.tensorflow_learner import TensorFlowLearner

    return TensorFlowLearner(model, train, weights, group, rng_seed)


def make_patches(learner: Learner, model: ModelConfig, train: TrainConfig) -> Patches:
    """Return where the examples of a training are: on the devices of a learner in JAX, else in memory."""
    return learner.patches() if train.engine == "jax" else HostPatches(model, train)  # type: ignore[attr-defined]


def chosen_engine(config: TrainConfig, model: ModelConfig, machine: Path) -> Choice:
    """Return engine and precision of the options; for ``auto``, those that are fastest here or were chosen before."""
    if "auto" not in (config.engine, config.precision):
        return Choice(config.engine, config.precision)
    path = machine / choice_name("training", config.engine, config.precision, model)
    return choose_once(path if config.precision == "auto" else None, lambda: _choose(config, model))


def _choose(config: TrainConfig, model: ModelConfig) -> Choice:
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _library()
    return with_precision(engine, reason, config.precision, lambda: fovs_per_second(config, model, engine))


def _library() -> tuple[str, str]:
    """Take JAX only on GPUs that it alone can use: on CPUs, its convolutions are slow."""
    if sees_gpu("tensorflow"):
        return "tensorflow", "TensorFlow sees a GPU"
    return ("jax", "JAX alone sees a GPU") if sees_gpu("jax") else ("tensorflow", "no GPU is visible")


def fovs_per_second(config: TrainConfig, model: ModelConfig, engine: str) -> dict[str, float]:
    """Train the network in every precision, in turn, in this process alone; return FOVs/s by precision."""
    steps = {name: step_on_noise(config, model, engine, name) for name in PRECISIONS}
    return {name: config.batch_size * rate for name, rate in calls_per_second(steps).items()}


def step_on_noise(config: TrainConfig, model: ModelConfig, engine: str, precision: str) -> Callable[[], object]:
    """Return a function that makes one step on patches of noise, without the other processes of the job."""
    changes = {"num_workers": 1, "virtual_workers": 1, "engine": engine, "precision": precision}
    alone = config.model_copy(update=changes)
    learner = make_learner(model, alone, initial_weights(model, rng_seed=0), ProcessGroup())
    patches = make_patches(learner, model, alone)
    grey = np.random.default_rng(0).normal(size=patch_size(model, alone)).astype(np.float32)
    example = Example(grey, None, (grey > 0).astype(np.uint8), 1.0, ())
    walks = [patches.walk(lane, example) for lane in range(config.batch_size)]
    return lambda: learner.step(patches.batch(walks), config.learning_rate)
