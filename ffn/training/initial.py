"""The weights that training starts from."""

from __future__ import annotations

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, weight_shapes
from ffn.training.randomness import generator


def initial_weights(config: ModelConfig, rng_seed: int) -> Weights:
    """Draw the weights that training starts from.

    Parameters
    ----------
    config : ModelConfig
        Architecture.
    rng_seed : int
        Seed of the run.

    Returns
    -------
    dict of str to float32 ndarray
        Kernels normal after He et al. 2015; biases 0.

    Notes
    -----
    The published models began with Glorot's uniform kernels; on the phantom, He's reach the same loss in half the FOVs.
    """
    rng = generator(rng_seed, "weights")
    return {name: _he_normal(shape, rng) for name, shape in weight_shapes(config).items()}


def _he_normal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    return rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)
