"""The training step in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from ffn.config import ModelConfig
from ffn.model.network import Weights, build_network, conv_names
from ffn.training.config import TrainConfig
from ffn.training.optimizers import State
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch, Learner

LIBRARY = SimpleNamespace(
    sqrt=tf.sqrt,
    where=tf.where,
    minimum=tf.minimum,
    maximum=tf.maximum,
    linalg=tf.linalg,
    transpose=tf.transpose,
    reshape=tf.reshape,
    concatenate=lambda parts: tf.concat(parts, 0),
)


class TensorFlowLearner(Learner):
    """A learner of four compiled functions, see `Learner`: on CPUs, or on the GPU of this process."""

    def __init__(
        self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
    ) -> None:
        super().__init__(model, train, group, rng_seed, LIBRARY)
        self._network = build_network(model, train.precision, train.batch_size)
        # in the order of `weight_shapes`
        self._variables = [v for name in conv_names(model) for v in self._network.get_layer(name).trainable_variables]
        self._held = self._optimizer.initial(self._flat(weights)).map(tf.Variable)
        self._load(self._state())
        fovs = [tf.TensorSpec((train.batch_size, *model.fov_size_zyx), tf.float32)] * len(Batch._fields)
        self._compiled_gradient = tf.function(
            self._gradient, input_signature=[*fovs, tf.TensorSpec((2,))], autograph=False
        )
        self._compiled_mean = tf.function(self._exchange.mean, autograph=False)
        self._compiled_update = tf.function(self._updated, autograph=False)
        self._compiled_forward = tf.function(self._forward, input_signature=fovs, autograph=False)

    def _differentiate(self, batch: Batch, flags: np.ndarray) -> tuple[np.ndarray, tf.Tensor]:
        pom_logit, vector = self._compiled_gradient(*batch, flags)
        return pom_logit.numpy(), vector

    def _mean(self, vectors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, np.ndarray]:
        mean = self._compiled_mean(vectors, tf.constant(self._num_steps, tf.int64))
        return mean, mean[-TAIL:].numpy()

    def _update(self, mean: tf.Tensor, learning_rate: float) -> tuple[float, bool]:
        norm, finite = self._compiled_update(mean, tf.constant(learning_rate, tf.float32))
        return float(norm), bool(finite)

    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        pom_logit, losses = self._compiled_forward(*batch)
        return pom_logit.numpy(), losses.numpy()

    def _state(self) -> State:
        return self._held.map(lambda variable: variable.numpy())

    def _load(self, state: State) -> None:
        """Replace the state, whose weights are also those of the network."""
        for variable, value in zip(_arrays(self._held), _arrays(state), strict=True):
            variable.assign(value)
        for variable, part in zip(self._variables, tf.split(state.weights, self._sizes), strict=True):
            variable.assign(tf.reshape(part, variable.shape))

    def _forward(
        self, image: tf.Tensor, pom_logit: tf.Tensor, labels: tf.Tensor, loss_weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM and the loss of every FOV."""
        updated = self._network([image[..., None], pom_logit[..., None]], training=True)[..., 0]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=updated)
        return updated, tf.reduce_mean(loss_weight * entropy, (1, 2, 3))

    def _gradient(self, *batch_and_flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM of a microbatch, and its worker's contribution to the average."""
        *batch, flags = batch_and_flags
        with tf.GradientTape() as tape:
            updated, losses = self._forward(*batch)
            loss = tf.reduce_mean(losses)
        own = [*tape.gradient(loss, self._variables), loss, flags]
        # one vector makes one message: a single call averages the gradients of all layers, the loss and the flags
        return updated, tf.concat([tf.reshape(tensor, [-1]) for tensor in own], 0)

    def _updated(self, mean: tf.Tensor, learning_rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights if the averaged gradient is finite; return its norm and whether it is finite."""
        gradient, loss = mean[:-TAIL], mean[-TAIL]
        norm = tf.norm(gradient)
        finite = tf.math.is_finite(norm + loss)
        held = self._held.map(lambda variable: variable.value())
        tf.cond(finite, lambda: self._load(self._optimizer.update(held, gradient, learning_rate)), lambda: None)
        return norm, finite


def _arrays(state: State) -> list:
    """Return the arrays of a state in their order."""
    arrays: list = []
    state.map(arrays.append)
    return arrays
