"""The Keras network whose training pass is one operation of this package."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence

import keras
import tensorflow as tf

from ffn.kernels import operations, unfit, vector_lanes

log = logging.getLogger(__name__)


class KernelModel(keras.Model):
    """The network as Keras made it, except that training runs ``ffn_forward`` and ``ffn_backward`` where it can.

    Inference and export see the ordinary layers, whose weights it computes with. Image and POM get no gradient.
    """

    def __init__(self, inputs: list[keras.KerasTensor], outputs: keras.KerasTensor, conv_names: Sequence[str]) -> None:
        super().__init__(inputs, outputs)
        self._conv_names = list(conv_names)

    def call(self, inputs: list[tf.Tensor], training: bool = False, mask: None = None) -> tf.Tensor:
        """Update the POM; float32 (B, Z, Y, X, 1)."""
        precision = self.get_layer(self._conv_names[0]).compute_dtype
        weights = [tf.convert_to_tensor(v) for name in self._conv_names for v in self.get_layer(name).weights]
        kernels = operations(precision) if training and _fits(precision, weights[1].shape[0]) else None
        if kernels is None:
            return super().call(inputs, training=training, mask=mask)
        lanes = vector_lanes() if precision == "float32" else 0
        return kernels.ffn_forward(*inputs, weights, lanes=lanes).updated_pom_logit


@functools.cache
def _fits(precision: str, features: int) -> bool:
    """Whether the operations compute such a network; the reason goes to the log once."""
    reason = unfit(precision, features)
    if reason:
        log.info("training kernels: TensorFlow's convolutions, because %s", reason)
    return reason is None


@tf.RegisterGradient("FfnForward")
def _gradient(forward: tf.Operation, gradient: tf.Tensor, _: tf.Tensor) -> list[tf.Tensor | None]:
    lanes = forward.get_attr("lanes")
    kernels = operations("float32" if lanes else "bfloat16")
    assert kernels is not None  # the forward pass has run
    weights = list(forward.inputs[2:])
    return [None, None, *kernels.ffn_backward(gradient, forward.outputs[1], weights, lanes=lanes)]
