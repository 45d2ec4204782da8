"""The initial weights of a network."""

from __future__ import annotations

import logging

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, weight_shapes
from ffn.training.data.lanes import generator

# With He's scale every residual module doubles the variance, so at depth 12 the first POM update would have a standard
# deviation of 22 logits. Up to this many modules, undamped networks trained well in our runs.
UNDAMPED_MODULES = 4

log = logging.getLogger(__name__)


def initial_weights(config: ModelConfig, rng_seed: int) -> Weights:
    """Draw the initial weights.

    Kernels are normal after He et al. 2015. In networks of more than four residual modules, the last kernel of each
    module is scaled down. Biases are 0. On the phantom, these reach the same loss as Glorot's uniform kernels in half
    the FOVs.
    """
    rng = generator(rng_seed, "weights")
    weights = {name: _he_normal(shape, rng) for name, shape in weight_shapes(config).items()}
    damping = np.float32(np.sqrt(max(1.0, (config.depth - 1) / UNDAMPED_MODULES)))
    for module in range(1, config.depth):
        weights[f"conv{module}_b/weights"] /= damping
    return weights


def weights_of_depth(weights: Weights, config: ModelConfig, rng_seed: int) -> Weights:
    """Return weights for a network of the same or another depth, whose last residual modules are new or missing.

    A new module's last convolution is 0, so the module adds nothing at first and the network computes the same.
    """
    shapes = weight_shapes(config)
    dropped = sorted({name.partition("/")[0] for name in weights.keys() - shapes.keys()}, key=_module)
    if dropped:
        log.warning(
            "depth %d: %s of the initial weights are left out, so the network starts with other answers than theirs",
            config.depth,
            ", ".join(dropped),
        )
    fresh = initial_weights(config, rng_seed) if shapes.keys() - weights.keys() else {}
    ends = {name: np.zeros(shapes[name], np.float32) for name in fresh if name.partition("/")[0].endswith("_b")}
    return {name: {**fresh, **ends, **weights}[name] for name in shapes}


def _module(name: str) -> tuple[int, str]:
    """Order convolutions by the number of their module."""
    module, _, part = name.removeprefix("conv").partition("_")
    return int(module), part


def _he_normal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    return rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)
