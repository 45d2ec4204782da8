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
        Kernels uniform after Glorot and Bengio 2010, as in the published models; biases 0.
    """
    rng = generator(rng_seed, "weights")
    return {name: _initial(shape, rng) for name, shape in weight_shapes(config).items()}


def _initial(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    receptive = int(np.prod(shape[:-2]))
    limit = np.sqrt(6 / (receptive * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)
