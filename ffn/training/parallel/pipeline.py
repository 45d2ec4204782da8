"""The network as a pipeline: devices have equally many of its modules each, and FOVs go through them one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from ffn.config import ModelConfig
from ffn.model.jax_network import Params, fastest_form, parts

STAGE = "stages"  # axis of devices along which the network is divided


def schedule(num_fovs: int, num_stages: int) -> np.ndarray:
    """Return the FOV that each stage computes in each tick.

    A stage takes in a tick what the stage before it has computed in the last one. Source: Huang et al. 2019 (GPipe).

    Returns
    -------
    int64 ndarray of shape (num_fovs + num_stages - 1, num_stages)
        Index of the FOV, -1 where the stage is idle.

    Examples
    --------
    >>> schedule(3, 2).tolist()
    [[0, -1], [1, 0], [2, 1], [-1, 2]]
    """
    fovs = np.arange(num_fovs + num_stages - 1)[:, None] - np.arange(num_stages)
    return np.where(fovs < num_fovs, np.maximum(fovs, -1), -1)


def pipelined_pom(
    params: Params, image: jax.Array, pom_logit: jax.Array, config: ModelConfig, precision: str, num_stages: int
) -> jax.Array:
    """Update the POM as `updated_pom` does; all devices along the axis `STAGE` of a mesh call this with the same.

    A stage computes with the weights of its modules; `num_stages` divides the number of modules. It keeps its inputs,
    and computes the activations again for the gradient.
    """
    form = fastest_form(config, precision)
    start, module, end = parts(precision, "planes" if form == "kernels" else form)
    stage, last = jax.lax.axis_index(STAGE), num_stages - 1
    own = _modules_of(params, config.depth, stage, num_stages)

    @jax.checkpoint
    def computed(taken: jax.Array, fov: jax.Array) -> tuple[jax.Array, jax.Array]:
        fovs = image[fov][None], pom_logit[fov][None]
        net = jax.lax.cond(stage == 0, lambda: start(params, *fovs), lambda: taken)
        net, _ = jax.lax.scan(lambda net, weights: (module(weights, "conv", net), None), net, own)
        return net, end(params, net, fovs[1])[0]

    def tick(taken: jax.Array, fovs: jax.Array) -> tuple[jax.Array, jax.Array]:
        net, updated = computed(taken, jnp.maximum(fovs[stage], 0))  # an idle stage computes any FOV
        return jax.lax.ppermute(net, STAGE, [(one, one + 1) for one in range(last)]), updated

    nothing = jnp.zeros((1, *image.shape[1:], config.features), precision)
    _, updated = jax.lax.scan(tick, nothing, jnp.asarray(schedule(len(image), num_stages)))
    return jax.lax.psum(jnp.where(stage == last, updated[last:], 0.0), STAGE)


def _modules_of(params: Params, depth: int, stage: jax.Array, num_stages: int) -> Params:
    """Return the weights of a stage's modules, stacked, by their names without number."""
    size = (depth - 1) // num_stages
    stacked = {
        f"conv_{name}": jnp.stack([params[f"conv{module}_{name}"] for module in range(1, depth)])
        for name in ("a/weights", "a/biases", "b/weights", "b/biases")
    }
    return {name: jax.lax.dynamic_slice_in_dim(array, stage * size, size) for name, array in stacked.items()}
