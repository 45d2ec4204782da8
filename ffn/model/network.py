"""The flood-filling network: residual 3×3×3 convolutions over the image and the predicted object map (POM)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig

if TYPE_CHECKING:
    import keras
    import openvino

Weights = dict[str, np.ndarray]


def conv_names(config: ModelConfig) -> list[str]:
    """Return the names of the convolutions in order, as in the published models: ``conv0_a, conv0_b, …, conv_lom``."""
    return [f"conv{module}_{part}" for module in range(config.depth) for part in "ab"] + ["conv_lom"]


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, kernels as (D, H, W, in, out)."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in conv_names(config):
        inputs = 2 if name == "conv0_a" else config.features
        kernel = (1, 1, 1, inputs, 1) if name == "conv_lom" else (3, 3, 3, inputs, config.features)
        shapes[f"{name}/weights"] = kernel
        shapes[f"{name}/biases"] = kernel[-1:]
    return shapes


def num_weights(config: ModelConfig) -> int:
    """Return the number of trainable weights; 472,353 for depth 9 and 32 features (Dong et al. 2019).

    Examples
    --------
    >>> num_weights(ModelConfig(depth=9)), num_weights(ModelConfig(depth=12))
    (472353, 638433)
    """
    return sum(int(np.prod(shape)) for shape in weight_shapes(config).values())


def build_network(config: ModelConfig, precision: str = "float32", batch_size: int | None = None) -> keras.Model:
    """Build the Keras model.

    Parameters
    ----------
    config : ModelConfig
        Depth, features and FOV.
    precision : {'float32', 'bfloat16'}
        Type in which convolutions compute; weights, inputs and output are float32. ``training=True`` uses the
        operations of `ffn.kernels` where the CPU has AMX for bfloat16, or AVX2 for float32.
    batch_size : int, optional
        Fixed number of FOVs; default: any number.

    Returns
    -------
    keras.Model
        Inputs ``image`` and ``pom_logit``, float32 (B, Z, Y, X, 1). The output of the same shape is the updated POM in
        logits: the input POM plus an update.

    Notes
    -----
    Source: Januszewski et al. 2016. The input module is conv, ReLU, conv; each residual module is ReLU, conv, ReLU,
    conv, add; ReLU and a voxel-wise convolution follow.
    """
    import keras

    shape = (*config.fov_size_zyx, 1)
    image = keras.Input(shape, batch_size=batch_size, name="image")
    pom_logit = keras.Input(shape, batch_size=batch_size, name="pom_logit")
    policy = {"float32": "float32", "bfloat16": "mixed_bfloat16"}[precision]

    def conv(net: keras.KerasTensor, name: str, activation: str | None = None) -> keras.KerasTensor:
        size, filters = (1, 1) if name == "conv_lom" else (3, config.features)
        return keras.layers.Conv3D(filters, size, padding="same", activation=activation, dtype=policy, name=name)(net)

    def relu(net: keras.KerasTensor) -> keras.KerasTensor:
        return keras.layers.ReLU(dtype=policy)(net)

    net = keras.layers.Concatenate(dtype=policy)([image, pom_logit])
    net = conv(conv(net, "conv0_a", "relu"), "conv0_b")
    for module in range(1, config.depth):
        update = conv(conv(relu(net), f"conv{module}_a", "relu"), f"conv{module}_b")
        net = keras.layers.Add(dtype=policy)([net, update])
    update = conv(relu(net), "conv_lom")
    output = keras.layers.Add(dtype="float32", name="updated_pom_logit")([pom_logit, update])
    from ffn.kernels.model import KernelModel

    return KernelModel([image, pom_logit], output, conv_names(config))


def openvino_network(config: ModelConfig, weights: Weights) -> openvino.Model:
    """Build the network of one FOV for OpenVINO, with its weights as constants; it takes the precision on compiling.

    Inputs are image and POM in logits, the output is the updated POM: float32 (1, Z, Y, X, 1) each.
    """
    import openvino
    from openvino import opset13 as ops

    def conv(net: openvino.Node, name: str) -> openvino.Node:
        kernel = np.moveaxis(weights[f"{name}/weights"], (4, 3), (0, 1))
        halo = [size // 2 for size in kernel.shape[2:]]
        net = ops.convolution(net, np.ascontiguousarray(kernel), [1, 1, 1], halo, halo, [1, 1, 1])
        return ops.add(net, weights[f"{name}/biases"].reshape(-1, 1, 1, 1))

    fov = config.fov_size_zyx
    inputs = [ops.parameter((1, *fov, 1), np.float32) for _ in range(2)]
    image, pom_logit = (ops.reshape(each, (1, 1, *fov), special_zero=False) for each in inputs)
    net = conv(ops.relu(conv(ops.concat([image, pom_logit], axis=1), "conv0_a")), "conv0_b")
    for module in range(1, config.depth):
        net = ops.add(net, conv(ops.relu(conv(ops.relu(net), f"conv{module}_a")), f"conv{module}_b"))
    updated = ops.add(pom_logit, conv(ops.relu(net), "conv_lom"))
    return openvino.Model([ops.reshape(updated, (1, *fov, 1), special_zero=False)], inputs, "ffn")
