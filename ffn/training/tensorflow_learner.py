"""The training step in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import Weights, build_network, conv_names, get_weights, set_weights
from ffn.training.config import TrainConfig
from ffn.training.parallel.exchange import TAIL
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import LEAST_LOSS, Batch, Learner

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


class TensorFlowLearner(Learner):
    """A learner of four compiled functions, see `Learner`: on CPUs, or on the GPU of this process."""

    def __init__(
        self, model: ModelConfig, train: TrainConfig, weights: Weights, group: ProcessGroup, rng_seed: int = 0
    ) -> None:
        import tensorflow as tf

        from ffn.training.optimizers import make_optimizer

        super().__init__(model, train, weights, group, rng_seed)
        self._network = build_network(model, train.precision, train.batch_size)
        self._set_weights(weights)
        # in the order of `weight_shapes`
        self._variables = [v for name in conv_names(model) for v in self._network.get_layer(name).trainable_variables]
        self._optimizer = make_optimizer(train, self._variables)
        self._averages = tf.Variable(_flat(self._variables)) if train.ema_decay else None
        fovs = [tf.TensorSpec((train.batch_size, *model.fov_size_zyx), tf.float32)] * len(Batch._fields)
        self._compiled_gradient = tf.function(
            self._gradient, input_signature=[*fovs, tf.TensorSpec((2,))], autograph=False
        )
        self._compiled_mean = tf.function(self._exchange.mean, autograph=False)
        self._compiled_update = tf.function(self._updated, autograph=False)
        self._compiled_forward = tf.function(self._forward, input_signature=fovs, autograph=False)

    def weights(self) -> Weights:
        """Return the current weights by name."""
        return get_weights(self._network, self._config)

    def _differentiate(self, batch: Batch, flags: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
        return self._compiled_gradient(*batch, flags)

    def _mean(self, vectors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, np.ndarray]:
        import tensorflow as tf

        mean = self._compiled_mean(vectors, tf.constant(self._num_steps, tf.int64))
        return mean, mean[-TAIL:].numpy()

    def _update(self, mean: tf.Tensor, learning_rate: float) -> tuple[float, bool]:
        import tensorflow as tf

        norm, finite = self._compiled_update(mean, tf.constant(learning_rate, tf.float32))
        return float(norm), bool(finite)

    def _evaluate(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        pom_logit, losses = self._compiled_forward(*batch)
        return pom_logit.numpy(), losses.numpy()

    def _set_weights(self, weights: Weights) -> None:
        set_weights(self._network, self._config, weights)

    def _slots(self) -> list[np.ndarray]:
        return [np.asarray(variable) for variable in self._optimizer.variables]

    def _set_slots(self, slots: Sequence[np.ndarray]) -> None:
        for variable, slot in zip(self._optimizer.variables, slots, strict=True):
            variable.assign(slot)

    def _average(self) -> np.ndarray | None:
        return None if self._averages is None else self._averages.numpy()

    def _set_average(self, average: np.ndarray) -> None:
        assert self._averages is not None
        self._averages.assign(average)

    def _forward(
        self, image: tf.Tensor, pom_logit: tf.Tensor, labels: tf.Tensor, loss_weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM and the loss of every FOV."""
        import tensorflow as tf

        updated = self._network([image[..., None], pom_logit[..., None]], training=True)[..., 0]
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=updated)
        return updated, tf.reduce_mean(loss_weight * entropy, (1, 2, 3))

    def _gradient(self, *batch_and_flags: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the updated POM of a microbatch, and its worker's contribution to the average."""
        import tensorflow as tf

        *batch, flags = batch_and_flags
        with tf.GradientTape() as tape:
            updated, losses = self._forward(*batch)
            loss = tf.reduce_mean(losses)

        def gradients() -> list[tf.Tensor]:
            return tape.gradient(loss, self._variables)

        if (tolerated := self._train.tolerated_loss) is None:
            own = gradients()
        else:
            avoidable = loss - LEAST_LOSS * tf.reduce_mean(batch[-1])
            own = tf.cond(avoidable <= tolerated, lambda: [tf.zeros_like(v) for v in self._variables], gradients)
        # one vector makes one message: a single call averages the gradients of all layers, the loss and the flags
        return updated, _flat([*own, loss, flags])

    def _updated(self, mean: tf.Tensor, learning_rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Update the weights if the averaged gradient is finite; return its norm and whether it is finite."""
        import tensorflow as tf

        half_square, loss = tf.nn.l2_loss(mean[:-TAIL]), mean[-TAIL]
        norm, finite = tf.sqrt(2 * half_square), tf.math.is_finite(half_square + loss)
        tf.cond(finite, lambda: self._apply(mean, norm, learning_rate), lambda: None)
        return norm, finite

    def _apply(self, mean: tf.Tensor, norm: tf.Tensor, learning_rate: tf.Tensor) -> None:
        """Update weights, optimizer state and moving average."""
        import tensorflow as tf

        if (largest := self._train.clip_entries) is not None:
            mean = tf.clip_by_value(mean, -largest, largest)
            norm = tf.norm(mean[:-TAIL])
        if self._train.clip_norm is not None:
            mean *= tf.minimum(1.0, tf.math.divide_no_nan(self._train.clip_norm, norm))
        parts = zip(tf.split(mean, [*self._sizes, TAIL]), self._variables, strict=False)
        self._optimizer.learning_rate.assign(learning_rate)
        self._optimizer.apply([tf.reshape(part, v.shape) for part, v in parts], self._variables)
        if self._averages is not None:
            number = tf.cast(self._optimizer.iterations, tf.float32)
            decay = tf.minimum(self._train.ema_decay, (1 + number) / (10 + number))  # see `Learner.averaged_weights`
            self._averages.assign_add((1 - decay) * (_flat(self._variables) - self._averages))


def _flat(tensors: Sequence[keras.Variable | tf.Tensor]) -> tf.Tensor:
    """Lay tensors end to end."""
    import tensorflow as tf

    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
