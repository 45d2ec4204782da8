"""An exponential moving average of the weights, which often scores better than the last weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


class MovingAverage:
    """Moving average of variables, updated after every optimizer step.

    Parameters
    ----------
    variables : sequence of keras.Variable
        The weights. The average starts from their current values.
    decay : float
        Share of the average that one update keeps, in the long run.

    Attributes
    ----------
    value : float32 tf.Variable of shape (N,)
        The averages, one weight tensor after the other.

    Notes
    -----
    In update t (from 1) the decay is at most (1 + t) / (10 + t), so the average quickly forgets the initial weights,
    which estimate nothing: their share falls with t⁻⁹ until `decay` is reached.
    """

    def __init__(self, variables: Sequence[keras.Variable], decay: float) -> None:
        import tensorflow as tf

        self._variables = variables
        self._decay = decay
        self.value = tf.Variable(flat(variables))

    def update(self, num_updates: tf.Tensor) -> None:
        """Include the current weights after `num_updates` optimizer steps; runs inside a graph."""
        import tensorflow as tf

        count = tf.cast(num_updates, tf.float32)
        share = 1 - tf.minimum(self._decay, (1 + count) / (10 + count))
        self.value.assign_add(share * (flat(self._variables) - self.value))


def flat(tensors: Sequence[keras.Variable | tf.Tensor]) -> tf.Tensor:
    """Lay tensors end to end."""
    import tensorflow as tf

    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
