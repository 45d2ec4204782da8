"""Initial weights: their seed and scale."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.training.plan import initial_weights

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


def test_initial_weights_come_from_the_seed():
    one, other = initial_weights(MODEL, 1), initial_weights(MODEL, 1)
    assert {name: array.shape for name, array in one.items()} == weight_shapes(MODEL)
    np.testing.assert_equal(one, other)
    kernel = one["conv1_a/weights"]
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx(np.sqrt(2 / (27 * 4)), rel=0.1)
    assert not one["conv1_a/biases"].any()
    assert (initial_weights(MODEL, 2)["conv1_a/weights"] != kernel).all()


def test_the_last_kernels_of_deep_modules_are_scaled_down():
    deep = initial_weights(MODEL.model_copy(update={"depth": 9}), 1)
    ends = np.stack([deep[f"conv{module}_b/weights"] for module in range(1, 9)])
    assert ends.std() == pytest.approx(np.sqrt(2 / (27 * 4) / 2), rel=0.05)
    assert deep["conv0_b/weights"].std() == pytest.approx(np.sqrt(2 / (27 * 4)), rel=0.1)
