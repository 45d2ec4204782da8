"""An exponential moving average of the weights, which is often better than the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


class MovingAverage:
    """Follows variables after every update.

    Parameters
    ----------
    variables : sequence of keras.Variable
        The weights, with the values that the average starts from.
    decay : float
        What stays of the average in an update, in the long run.

    Attributes
    ----------
    value : float32 tf.Variable of shape (N,)
        The averages, one weight tensor after the other.

    Notes
    -----
    In update t (from 1) the decay is at most (1 + t) / (10 + t), so that the initial weights, which are no estimate of
    anything, are soon forgotten: what is left of them falls with t⁻⁹ until `decay` is reached.
    """

    def __init__(self, variables: Sequence[keras.Variable], decay: float) -> None:
        import tensorflow as tf

        self._variables = variables
        self._decay = decay
        self.value = tf.Variable(flat(variables))

    def update(self, num_updates: tf.Tensor) -> None:
        """Take in the current weights after so many updates of them, this one included; for use in a graph."""
        import tensorflow as tf

        count = tf.cast(num_updates, tf.float32)
        share = 1 - tf.minimum(self._decay, (1 + count) / (10 + count))
        self.value.assign_add(share * (flat(self._variables) - self.value))


def flat(tensors: Sequence[keras.Variable | tf.Tensor]) -> tf.Tensor:
    """Lay tensors end to end."""
    import tensorflow as tf

    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
