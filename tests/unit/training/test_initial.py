"""Initial weights: their seed and scale."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.model.network import build_network, set_weights, weight_shapes
from ffn.training.initial import initial_weights, weights_of_depth

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


def answer(depth, weights):
    config = MODEL.model_copy(update={"depth": depth})
    network = build_network(config)
    set_weights(network, config, weights)
    fovs = np.random.default_rng(3).normal(size=(2, 1, *config.fov_size_zyx, 1)).astype(np.float32)
    return network(list(fovs)).numpy()


def test_added_modules_leave_the_answers_unchanged_and_can_learn():
    weights = initial_weights(MODEL, 1)
    deeper = weights_of_depth(weights, MODEL.model_copy(update={"depth": 5}), 2)
    np.testing.assert_array_equal(answer(5, deeper), answer(2, weights))
    assert all(deeper[f"conv{module}_a/weights"].any() for module in (2, 3, 4))
    same = weights_of_depth(weights, MODEL, 2)
    np.testing.assert_equal(same, weights)


def test_dropped_modules_are_named(caplog):
    deep = initial_weights(MODEL.model_copy(update={"depth": 12}), 1)
    shallow = weights_of_depth(deep, MODEL.model_copy(update={"depth": 10}), 2)
    assert shallow.keys() == weight_shapes(MODEL.model_copy(update={"depth": 10})).keys()
    assert all(array is deep[name] for name, array in shallow.items())
    (said,) = [record.getMessage() for record in caplog.records]
    assert "conv10_a, conv10_b," in said
