"""The learner of each engine."""

from __future__ import annotations

from ffn.config import ModelConfig
from ffn.model.network import Weights
from ffn.training.config import TrainConfig
from ffn.training.jax_learner import JaxLearner
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Learner
from ffn.training.tensorflow_learner import TensorFlowLearner

KINDS: dict[str, type[TensorFlowLearner | JaxLearner]] = {"tensorflow": TensorFlowLearner, "jax": JaxLearner}


def make_learner(
    model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
) -> Learner:
    """Return the learner of the engine that the options name, not ``auto``; see `Learner` for the parameters."""
    return KINDS[train.engine](model, train, weights, group, rng_seed)
