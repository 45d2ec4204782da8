"""The moving average of variables follows its equation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ffn.training.moving_average import MovingAverage, flat


def test_the_average_forgets_its_start_quickly_and_then_decays_as_configured():
    variables = [keras.Variable(np.zeros((2, 3), np.float32)), keras.Variable(np.zeros(4, np.float32))]
    average = MovingAverage(variables, decay=0.5)
    expected = np.zeros(10)
    for number in range(1, 12):
        for variable in variables:
            variable.assign(np.full(variable.shape, number, np.float32))
        average.update(tf.constant(number, tf.int64))
        decay = min(0.5, (1 + number) / (10 + number))
        expected = decay * expected + (1 - decay) * number
        np.testing.assert_allclose(average.value.numpy(), expected, rtol=1e-6)
    assert decay == 0.5


@pytest.mark.parametrize("shapes", [[(2, 3), (4,)], [(5,)]])
def test_flat_tensors_lie_end_to_end(shapes):
    arrays = [np.random.default_rng(0).random(shape).astype(np.float32) for shape in shapes]
    np.testing.assert_array_equal(
        flat([tf.constant(array) for array in arrays]), np.concatenate([*map(np.ravel, arrays)])
    )
