"""The network of `ffn.model.network` as one pure JAX function, and as a pipeline over devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ffn.config import ModelConfig

if TYPE_CHECKING:
    import jax

    from ffn.kernels.gpu import Packed

Params = Mapping[str, "jax.Array"]
Form = Literal["volumes", "planes", "kernels"]


STAGE = "stages"  # axis of devices along which `pipelined_pom` divides the network
AXES = ("NDHWC", "DHWIO", "NDHWC")
AXES_OF_PLANES = ("NHWC", "HWIO", "NHWC")


def fastest_form(config: ModelConfig, precision: str) -> Form:
    """Return how to compute convolutions here; on an H100, by FOVs/s at a batch of 8 (depth 12, 32 features, 33³).

    Planes had 436 in float32 and 2,710 in bfloat16, volumes 595 and 1,999, our kernels 5,841 (float16). On a CPU,
    planes are 2.5 times as fast as volumes with 32 channels, and 5 times with 8.
    """
    import jax

    chosen = jax.config.values["jax_default_device"]
    if (chosen.platform if chosen else jax.default_backend()) == "cpu":
        return "planes"
    if precision == "float32":
        return "volumes"
    from ffn.kernels import gpu

    return "planes" if gpu.obstacle(config.fov_size_zyx, config.features) else "kernels"


def engine_name(config: ModelConfig, precision: str) -> str:
    """Return what results depend on: another form rounds otherwise."""
    form = fastest_form(config, precision)
    return f"jax {precision}" if form == "planes" else f"jax {precision} {form}"


def prepared(
    params: Mapping[str, Any], config: ModelConfig, precision: str, form: Form | None = None
) -> Params | Packed:
    """Return weights in the type and order in which `updated_pom` computes; a flood does so once."""
    import jax.numpy as jnp

    if (form or fastest_form(config, precision)) == "kernels":
        from ffn.kernels import gpu

        return gpu.pack(params, config, precision)
    last = "conv_lom/biases"  # these are added in float32
    return {name: jnp.asarray(array, jnp.float32 if name == last else precision) for name, array in params.items()}


def updated_pom(
    params: Params | Packed,
    image: jax.Array,
    pom_logit: jax.Array,
    config: ModelConfig,
    precision: str = "float32",
    form: Form | None = None,
) -> jax.Array:
    """Update the POM of a batch of FOVs; can be compiled and differentiated.

    Parameters
    ----------
    params : mapping of str to float32 array, or result of `prepared`
        Weights by name, see `ffn.model.network.weight_shapes`.
    image, pom_logit : float32 array of shape (B, Z, Y, X)
        Normalised image, and POM in logits.
    config : ModelConfig
        Depth of the network.
    precision : {'float32', 'bfloat16', 'float16'}
        Type in which convolutions compute, as in `build_network`; they accumulate in float32.
    form : {'volumes', 'planes', 'kernels'}, optional
        How to compute convolutions: by XLA, as they are or as convolutions of planes (see `_of_planes`); or by
        `ffn.kernels.gpu`. Default: see `fastest_form`.

    Returns
    -------
    float32 array of shape (B, Z, Y, X)
        Updated POM in logits.
    """
    form = form or fastest_form(config, precision)
    if form == "kernels":
        from ffn.kernels import gpu

        if isinstance(params, gpu.Packed):
            return gpu.updated_pom(params, image, pom_logit, config.depth)
        return gpu.trainable_pom(params, image, pom_logit, config, precision)
    assert isinstance(params, Mapping)
    start, module, end = _parts(precision, form)
    net = start(params, image, pom_logit)
    for number in range(1, config.depth):
        net = module(params, f"conv{number}", net)
    return end(params, net, pom_logit)


def schedule(num_fovs: int, num_stages: int) -> np.ndarray:
    """Return the FOV that each stage computes in each tick, int64 (ticks, stages); -1 where it is idle.

    A stage takes in a tick what the stage before it has computed in the last one. Source: Huang et al. 2019 (GPipe).

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

    Stages have equally many modules of the network, and FOVs go through them one by one. A stage keeps its inputs, and
    computes the activations again for the gradient.
    """
    import jax
    import jax.numpy as jnp

    form = fastest_form(config, precision)
    start, module, end = _parts(precision, "planes" if form == "kernels" else form)
    stage, last, size = jax.lax.axis_index(STAGE), num_stages - 1, (config.depth - 1) // num_stages
    kinds = ("a/weights", "a/biases", "b/weights", "b/biases")
    modules = {f"conv_{kind}": jnp.stack([params[f"conv{i}_{kind}"] for i in range(1, config.depth)]) for kind in kinds}
    own = {name: jax.lax.dynamic_slice_in_dim(array, stage * size, size) for name, array in modules.items()}

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


def _parts(precision: str, form: Form) -> tuple[Callable[..., jax.Array], ...]:
    """Return start, modules and end of the network as XLA computes them, with features (B, Z, Y, X, C) in between."""
    import jax
    import jax.numpy as jnp

    dtype = jnp.dtype(precision)
    exact = jax.lax.Precision.HIGHEST if precision == "float32" else None  # otherwise GPUs multiply with 10 bits
    convolve = _of_planes if form == "planes" else _of_volumes

    def conv(params: Params, name: str, net: jax.Array) -> jax.Array:
        kernel, bias = params[f"{name}/weights"].astype(dtype), params[f"{name}/biases"].astype(dtype)
        return convolve(net, kernel, exact) + bias

    def pair(params: Params, name: str, net: jax.Array) -> jax.Array:
        return conv(params, f"{name}_b", jax.nn.relu(conv(params, f"{name}_a", net)))

    def start(params: Params, image: jax.Array, pom_logit: jax.Array) -> jax.Array:
        return pair(params, "conv0", jnp.stack([image, pom_logit], axis=-1).astype(dtype))

    def module(params: Params, name: str, net: jax.Array) -> jax.Array:
        return net + pair(params, name, jax.nn.relu(net))

    def end(params: Params, net: jax.Array, pom_logit: jax.Array) -> jax.Array:
        voxelwise = params["conv_lom/weights"][0, 0, 0, :, 0].astype(dtype)
        update = jnp.matmul(jax.nn.relu(net), voxelwise, precision=exact, preferred_element_type=jnp.float32)
        return pom_logit + update + params["conv_lom/biases"]

    return start, module, end


def _of_volumes(net: jax.Array, kernel: jax.Array, exact: jax.lax.Precision | None) -> jax.Array:
    """Convolve (B, Z, Y, X, C) with a kernel (3, 3, 3, C, F), with zeros around."""
    import jax

    return jax.lax.conv_general_dilated(net, kernel, (1, 1, 1), "SAME", dimension_numbers=AXES, precision=exact)


def _of_planes(net: jax.Array, kernel: jax.Array, exact: jax.lax.Precision | None) -> jax.Array:
    """Compute the same as a convolution of planes: the channels of a plane are those of its neighbours, too."""
    import jax
    import jax.numpy as jnp

    size_z, (size_y, size_x) = net.shape[1], net.shape[2:4]
    padded = jnp.pad(net, ((0, 0), (1, 1), (0, 0), (0, 0), (0, 0)))
    near = jnp.concatenate([padded[:, shift : shift + size_z] for shift in range(3)], axis=-1)
    flat = near.reshape(-1, size_y, size_x, near.shape[-1])
    of_planes = jnp.moveaxis(kernel, 0, 2).reshape(3, 3, near.shape[-1], kernel.shape[-1])
    out = jax.lax.conv_general_dilated(
        flat, of_planes, (1, 1), "SAME", dimension_numbers=AXES_OF_PLANES, precision=exact
    )
    return out.reshape(*net.shape[:-1], kernel.shape[-1])
