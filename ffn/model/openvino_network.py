"""The network of `ffn.model.network` for OpenVINO: one FOV, with its weights as constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ffn.model.store import Model

if TYPE_CHECKING:
    import openvino


def openvino_network(model: Model) -> openvino.Model:
    """Build the network in float32; OpenVINO takes the precision when it compiles.

    Parameters
    ----------
    model : Model
        Architecture and weights.

    Returns
    -------
    openvino.Model
        Inputs image and POM in logits, and the updated POM as output, float32 (1, Z, Y, X, 1) each.
    """
    import openvino
    from openvino import opset13 as ops

    def conv(net: openvino.Node, name: str) -> openvino.Node:
        kernel = np.moveaxis(model.weights[f"{name}/weights"], (4, 3), (0, 1))
        halo = [size // 2 for size in kernel.shape[2:]]
        net = ops.convolution(net, np.ascontiguousarray(kernel), [1, 1, 1], halo, halo, [1, 1, 1])
        return ops.add(net, model.weights[f"{name}/biases"].reshape(-1, 1, 1, 1))

    fov = model.config.fov_size_zyx
    inputs = [ops.parameter((1, *fov, 1), np.float32) for _ in range(2)]
    image, pom_logit = (ops.reshape(each, (1, 1, *fov), special_zero=False) for each in inputs)
    net = conv(ops.relu(conv(ops.concat([image, pom_logit], axis=1), "conv0_a")), "conv0_b")
    for module in range(1, model.config.depth):
        net = ops.add(net, conv(ops.relu(conv(ops.relu(net), f"conv{module}_a")), f"conv{module}_b"))
    updated = ops.add(pom_logit, conv(ops.relu(net), "conv_lom"))
    return openvino.Model([ops.reshape(updated, (1, *fov, 1), special_zero=False)], inputs, "ffn")
