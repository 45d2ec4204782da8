"""The engine and precision that train fastest here, where the options leave them to `auto`, and the learner."""

from __future__ import annotations

from pathlib import Path

from ffn.config import ModelConfig
from ffn.machine.jax_device import require_jax
from ffn.model.choice import ASKED_FOR, Choice, choice_name, choose_once, sees_gpu, with_precision
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Learner
from ffn.training.walk import HostPatches


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


def make_patches(learner: Learner, model: ModelConfig, train: TrainConfig) -> HostPatches:
    """Return where the examples of a training are: on the devices of a learner in JAX, else in memory."""
    return learner.patches() if train.engine == "jax" else HostPatches(model, train)  # type: ignore[attr-defined]


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
