"""The optimizers, by their names in the configuration."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from ffn.training import muon
from ffn.training.config import TrainConfig


class FusedAdam(keras.optimizers.Adam):
    """Adam and AdamW (Kingma & Ba 2015, Loshchilov & Hutter 2019) with an update of one operation instead of a dozen.

    This halves the time of the update, which is a millisecond of every step at depth 9.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Change one variable."""
        index, step = self._get_variable_index(variable), tf.cast(self.iterations + 1, tf.float32)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )


class Muon(FusedAdam):
    """Momentum with orthogonal steps for kernels, see `ffn.training.muon`; Adam for biases and the last convolution.

    For a kernel W as a matrix of inputs × outputs, with gradient G and learning rate γ::

        M ← 0.95 M + G        W ← W − γ orthogonal_step(G + 0.95 M)
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Change one variable."""
        if not muon.is_matrix(variable.shape):
            super().update_step(gradient, variable, learning_rate)
            return
        momentum = self._momentums[self._get_variable_index(variable)].value
        momentum.assign(muon.MOMENTUM * momentum + gradient)
        matrix = tf.reshape(gradient + muon.MOMENTUM * momentum, (-1, variable.shape[-1]))
        step = muon.orthogonal_step(matrix, tf.transpose, tf.norm)
        variable.assign_sub(learning_rate * tf.reshape(step, variable.shape))


class Lamb(keras.optimizers.Adam):
    """Adam with a step proportional to the norm of the weights, for each weight tensor.

    For weights w, Adam's direction r = m̂ / (√v̂ + ε), learning rate γ and weight decay β::

        w ← w − γ (r + β w) ‖w‖ / ‖r + β w‖

    The ratio is 1 where a norm is 0. Biases, and any other vector, take Adam's step γ r: they start at 0, from where
    relative steps hardly move them.

    Parameters
    ----------
    learning_rate : float
        γ: the relative change per step.
    trust_decay : float
        β. Keras' own `weight_decay` is different: it is applied outside the ratio, in Keras' own Lamb too.
    epsilon : float
        ε.

    Notes
    -----
    Source: You et al. 2020, Large batch optimization for deep learning, algorithm 2 with φ the identity.
    """

    def __init__(self, learning_rate: float, trust_decay: float = 0.0, epsilon: float = 1e-7) -> None:
        super().__init__(learning_rate, epsilon=epsilon)
        self.trust_decay = trust_decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Change one variable."""
        index, step = self._get_variable_index(variable), tf.cast(self.iterations + 1, tf.float32)
        mean, square = self._momentums[index].value, self._velocities[index].value
        mean.assign_add((1 - self.beta_1) * (gradient - mean))
        square.assign_add((1 - self.beta_2) * (tf.square(gradient) - square))
        update = mean / (1 - self.beta_1**step) / (tf.sqrt(square / (1 - self.beta_2**step)) + self.epsilon)
        if len(variable.shape) > 1:
            update += self.trust_decay * variable
            update *= _ratio(tf.norm(variable), tf.norm(update))
        variable.assign_sub(learning_rate * update)


class Lars(keras.optimizers.Optimizer):
    """Momentum with a step proportional to the norm of the weights, for each weight tensor.

    For weights w with gradient g, learning rate γ, momentum m and weight decay β::

        λ = ‖w‖ / (‖g‖ + β ‖w‖)        v ← m v + γ λ (g + β w)        w ← w − v

    λ is 1 where ‖w‖ or the divisor is 0. Biases, and any other vector, have λ = 1 and β = 0.

    Parameters
    ----------
    learning_rate : float
        γ: the relative change per step. It includes You et al.'s trust coefficient (0.001).
    momentum : float
        m.
    trust_decay : float
        β. Keras' own `weight_decay` is different: it ignores λ.

    Notes
    -----
    Source: You et al. 2017, Large batch training of convolutional networks, equation 6 and algorithm 1.
    """

    def __init__(self, learning_rate: float, momentum: float, trust_decay: float = 0.0) -> None:
        super().__init__(learning_rate)
        self.momentum = momentum
        self.trust_decay = trust_decay

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make a velocity for each variable."""
        if not self.built:
            super().build(variables)
            self._velocities = self.add_optimizer_variables(variables, "velocity")

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Change one variable."""
        if len(variable.shape) > 1:
            norm = tf.norm(variable)
            trust = _ratio(norm, tf.norm(gradient) + self.trust_decay * norm)
            gradient = trust * (gradient + self.trust_decay * variable)
        velocity = self._velocities[self._get_variable_index(variable)].value
        velocity.assign(self.momentum * velocity + learning_rate * gradient)
        variable.assign_sub(velocity)


def _ratio(norm: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    """Return the quotient of two norms, 1 where one of them is 0."""
    return tf.where((norm > 0) & (divisor > 0), norm / divisor, 1.0)


def make_optimizer(train: TrainConfig, variables: Sequence[keras.Variable]) -> keras.optimizers.Optimizer:
    """Return the optimizer that the configuration names, built for `variables`.

    Parameters
    ----------
    train : TrainConfig
        Optimizer, momentum, weight decay and ε. Every step sets the learning rate.
    variables : sequence of keras.Variable
        The weights. Vectors among them (biases) never decay.
    """
    rate, decay, epsilon = train.learning_rate, train.weight_decay, train.adam_epsilon
    makers = {
        "sgd": lambda: keras.optimizers.SGD(rate),
        "momentum": lambda: keras.optimizers.SGD(rate, momentum=train.momentum),
        "adam": lambda: FusedAdam(rate, epsilon=epsilon),
        "adamw": lambda: FusedAdam(rate, epsilon=epsilon, weight_decay=decay or None),
        "muon": lambda: Muon(rate, epsilon=epsilon, weight_decay=decay or None),
        "lamb": lambda: Lamb(rate, decay, epsilon),
        "lars": lambda: Lars(rate, train.momentum, decay),
    }
    optimizer = makers[train.optimizer]()
    optimizer.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) == 1])
    optimizer.build(variables)
    return optimizer
