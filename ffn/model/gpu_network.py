"""The network of 32 features as the kernels of `ffn.kernels.gpu` compute it, and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ffn.config import ModelConfig
from ffn.geometry import zyx
from ffn.kernels import gpu

Params = Mapping[str, jax.Array]


class Packed(NamedTuple):
    """Weights as the kernels need them: kernels and biases of the convolutions, and those of the last one."""

    convolutions: dict[str, tuple[jax.Array, jax.Array]]
    last: jax.Array
    last_bias: jax.Array


def pack(params: Mapping[str, Any], config: ModelConfig, precision: str) -> Packed:
    """Order the weights for the kernels, in the type in which these multiply."""
    names = [f"conv{module}_{part}" for module in range(config.depth) for part in "ab"]
    convolutions = {
        name: (gpu.packed(_kernel(params, name, precision)), jnp.asarray(params[f"{name}/biases"], jnp.float32))
        for name in names
    }
    last = jnp.asarray(params["conv_lom/weights"], precision)[0, 0, 0, :, 0]
    return Packed(convolutions, last, jnp.asarray(params["conv_lom/biases"], jnp.float32))


def _kernel(params: Mapping[str, Any], name: str, precision: str) -> jax.Array:
    """Return a kernel (3, 3, 3, 32, 32); that of image and POM is padded with zeros."""
    kernel = jnp.asarray(params[f"{name}/weights"], precision)
    return jnp.pad(kernel, ((0, 0),) * 3 + ((0, gpu.CHANNELS - kernel.shape[3]), (0, 0)))


def updated_pom(packed: Packed, image: jax.Array, pom_logit: jax.Array, depth: int) -> jax.Array:
    """Return the POM as `ffn.model.jax_network.updated_pom` does."""
    return _forward(packed, image, pom_logit, depth)[0]


def _forward(packed: Packed, image: jax.Array, pom_logit: jax.Array, depth: int) -> tuple[jax.Array, list[jax.Array]]:
    """Return also what the gradient needs: the input of every convolution, and of the last one."""
    fov = zyx(image.shape[1:])
    fields = jnp.stack([image, pom_logit], axis=-1).astype(packed.last.dtype)
    active = gpu.flattened(jnp.pad(fields, ((0, 0),) * 4 + ((0, gpu.CHANNELS - 2),)))
    net, inputs = jnp.zeros_like(active), [active]
    for module in range(depth):
        inside = gpu.conv_relu(active, *packed.convolutions[f"conv{module}_a"], fov)
        net, active = gpu.conv_add(inside, *packed.convolutions[f"conv{module}_b"], net, fov)
        inputs += [inside, active]
    update = jnp.matmul(active, packed.last, preferred_element_type=jnp.float32)
    return pom_logit + gpu.unflattened(update, fov) + packed.last_bias, inputs


def trainable_pom(
    params: Params, image: jax.Array, pom_logit: jax.Array, config: ModelConfig, precision: str
) -> jax.Array:
    """Return the same for weights as they are stored, with a gradient for them; image and POM have none."""

    @jax.custom_vjp
    def updated(params: Params, image: jax.Array, pom_logit: jax.Array) -> jax.Array:
        return updated_pom(pack(params, config, precision), image, pom_logit, config.depth)

    def forward(
        params: Params, image: jax.Array, pom_logit: jax.Array
    ) -> tuple[jax.Array, tuple[Params, list[jax.Array]]]:
        out, inputs = _forward(pack(params, config, precision), image, pom_logit, config.depth)
        return out, (params, inputs)

    def backward(saved: tuple[Params, list[jax.Array]], gradient: jax.Array) -> tuple[Params, None, None]:
        return _gradients(*saved, gradient, config.depth, precision), None, None

    updated.defvjp(forward, backward)
    return updated(params, image, pom_logit)


def _gradients(params: Params, inputs: list[jax.Array], gradient: jax.Array, depth: int, precision: str) -> Params:
    """Return the gradient of all weights, float32, from that of the updated POM."""
    fov, found = zyx(gradient.shape[1:]), {}
    along_rows = gpu.flattened(gradient[..., None])  # (rows, 1)
    last = params["conv_lom/weights"][0, 0, 0, :, 0].astype(precision).astype(jnp.float32)
    found["conv_lom/weights"] = (inputs[-1] * along_rows).sum(0)[None, None, None, :, None]
    found["conv_lom/biases"] = gradient.sum()[None]
    of_net = jnp.where(inputs[-1] > 0, along_rows * last, 0).astype(precision)

    def passed(name: str, entering: jax.Array, of_output: jax.Array) -> jax.Array:
        """Note the gradient of a convolution's weights; return its kernel for the way back."""
        of_kernel = gpu.weight_gradient(entering, of_output, fov)
        found[f"{name}/weights"] = of_kernel[..., : params[f"{name}/weights"].shape[3], :]
        found[f"{name}/biases"] = of_output.astype(jnp.float32).sum(0)
        return gpu.packed(gpu.backward(_kernel(params, name, precision)))

    for module in reversed(range(depth)):
        entering, inside = inputs[2 * module : 2 * module + 2]
        kernel = passed(f"conv{module}_b", inside, of_net)
        of_inside = gpu.conv_back(of_net, kernel, inside, jnp.zeros_like(of_net), fov)
        kernel = passed(f"conv{module}_a", entering, of_inside)
        if module:
            of_net = gpu.conv_back(of_inside, kernel, entering, of_net, fov)
    return found
