"""Every schedule and optimizer follows its equation; the learners' tests run them in TensorFlow and JAX."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ffn.training.config import TrainConfig
from ffn.training.optimizers import MOMENTUM, NUM_SLOTS, Optimizer, learning_rate

SHAPES = [(3, 2, 4), (4,)]
RATE = 0.02


def start():
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


def gradients(step):
    rng = np.random.default_rng(step)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


def flat(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def trained(name, steps=4, weights=None, of_step=gradients, **options):
    """Return kernel and bias after some steps."""
    optimizer = Optimizer(TrainConfig(optimizer=name, **options), SHAPES, np)
    state = optimizer.initial(flat(start() if weights is None else weights))
    for step in range(steps):
        state = optimizer.update(state, flat(of_step(step)), np.float32(RATE))
    assert state.num_updates == steps and len(state.slots) == NUM_SLOTS[name]
    kernel, bias = np.split(state.weights, [24])
    return kernel.reshape(3, 2, 4), bias


@pytest.mark.parametrize(
    ("name", "reference", "options"),
    [
        ("adam", lambda: keras.optimizers.Adam(RATE), {}),
        ("adam", lambda: keras.optimizers.Adam(RATE, epsilon=0.5), {"adam_epsilon": 0.5}),
        ("adamw", lambda: keras.optimizers.AdamW(RATE, weight_decay=0.1), {"weight_decay": 0.1}),
        ("momentum", lambda: keras.optimizers.SGD(RATE, momentum=MOMENTUM), {}),
        ("sgd", lambda: keras.optimizers.SGD(RATE), {}),
    ],
)
def test_updates_equal_those_of_keras(name, reference, options):
    weights, optimizer = [keras.Variable(array) for array in start()], reference()
    optimizer.exclude_from_weight_decay(var_list=weights[1:])
    for step in range(4):
        optimizer.apply([tf.constant(gradient) for gradient in gradients(step)], weights)
    for one, other in zip(trained(name, **options), weights, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-5, atol=1e-6)


def test_muon_moves_kernels_equally_far_in_all_directions_and_the_rest_like_adam():
    kernel, momentum = start()[0].reshape(6, 4), np.zeros((6, 4))
    for step in range(4):
        gradient = gradients(step)[0].reshape(6, 4)
        momentum = 0.95 * momentum + gradient
        left, values, right = np.linalg.svd(gradient + 0.95 * momentum, full_matrices=False)
        values /= np.linalg.norm(values)
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        assert (values > 0.65).all() and (values < 1.25).all()
        kernel = kernel - RATE * 0.2 * np.sqrt(6) * (left * values) @ right
    found = trained("muon")
    np.testing.assert_allclose(found[0].reshape(6, 4), kernel, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[1], trained("adam")[1], rtol=1e-5)


def test_muon_steps_like_adam_where_a_kernel_has_one_output():
    moved = []
    for name in ("muon", "adam"):
        optimizer = Optimizer(TrainConfig(optimizer=name), [(3, 2, 1)], np)
        state = optimizer.initial(np.ones(6, np.float32))
        moved.append(optimizer.update(state, np.ones(6, np.float32), np.float32(RATE)).weights)
    np.testing.assert_array_equal(*moved)


DECAYED = {"adamw": 1 - RATE * 0.5, "muon": 1 - RATE * 0.5}


@pytest.mark.parametrize("name", sorted(NUM_SLOTS))
def test_without_gradient_kernels_decay_and_biases_stay(name):
    options = {"weight_decay": 0.5} if name in DECAYED else {}
    kernel, bias = trained(name, steps=1, of_step=lambda step: [np.zeros(s, np.float32) for s in SHAPES], **options)
    np.testing.assert_array_equal(bias, start()[1])
    np.testing.assert_allclose(kernel, start()[0] * DECAYED.get(name, 1), rtol=1e-5)


OPTIONS = {"num_workers": 4, "virtual_workers": 2, "batch_size": 3, "learning_rate": 0.01, "max_steps": 100}
PEAK = {"constant": 0.01, "linear": 0.24, "sqrt": 0.01 * 24**0.5}


def rates(**options):
    train = TrainConfig(**OPTIONS, **options)
    return np.array([learning_rate(train, step) for step in range(train.max_steps)])


@pytest.mark.parametrize("rule", PEAK)
@pytest.mark.parametrize("schedule", ["constant", "cosine", "cyclic"])
@pytest.mark.parametrize("warmup", [0, 10])
def test_the_warm_up_ends_at_the_scaled_rate_which_is_the_highest(rule, schedule, warmup):
    found = rates(scaling_rule=rule, schedule=schedule, warmup_steps=warmup)
    assert [found[warmup], found.max()] == pytest.approx([PEAK[rule]] * 2)
    assert found.min() > 0
    np.testing.assert_allclose(np.diff(found[:warmup]), PEAK[rule] / 10)
