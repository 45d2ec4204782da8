"""Every optimizer of the configuration follows its equation."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ffn.training.config import TrainConfig
from ffn.training.optimizers import make_optimizer

NAMES = ["adam", "adamw", "lamb", "lars", "momentum", "muon", "sgd"]
RATE = 0.02


def variables():
    rng = np.random.default_rng(1)
    return [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 2, 4), (4,))]


def gradients(step):
    rng = np.random.default_rng(step)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in ((3, 2, 4), (4,))]


def trained(optimizer, weights, steps=4):
    for step in range(steps):
        optimizer.apply(gradients(step), weights)
    return [np.asarray(weight) for weight in weights]


def ours(steps=4, **options):
    weights = variables()
    return trained(make_optimizer(TrainConfig(learning_rate=RATE, **options), weights), weights, steps)


def test_the_tests_cover_every_optimizer():
    assert sorted(TrainConfig.model_fields["optimizer"].annotation.__args__) == NAMES


@pytest.mark.parametrize(
    ("name", "reference", "options"),
    [
        ("adam", lambda: keras.optimizers.Adam(RATE), {}),
        ("adam", lambda: keras.optimizers.Adam(RATE, epsilon=0.5), {"adam_epsilon": 0.5}),
        ("adamw", lambda: keras.optimizers.AdamW(RATE, weight_decay=0.1), {"weight_decay": 0.1}),
        ("adamw", lambda: keras.optimizers.AdamW(RATE, weight_decay=0.0), {}),
    ],
)
def test_fused_updates_equal_those_of_keras(name, reference, options):
    weights, optimizer = variables(), reference()
    optimizer.exclude_from_weight_decay(var_list=weights[1:])
    for one, other in zip(ours(optimizer=name, **options), trained(optimizer, weights), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)


def test_sgd_and_momentum_follow_the_gradient():
    start = [np.asarray(weight) for weight in variables()]
    velocity = [np.zeros_like(weight) for weight in start]
    for step in range(4):
        velocity = [0.8 * v + RATE * g.numpy() for v, g in zip(velocity, gradients(step), strict=True)]
        start = [weight - v for weight, v in zip(start, velocity, strict=True)]
    for one, other in zip(ours(optimizer="momentum", momentum=0.8), start, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    plain = [np.asarray(w) - RATE * g.numpy() for w, g in zip(variables(), gradients(0), strict=True)]
    for one, other in zip(ours(steps=1, optimizer="sgd"), plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_lars_steps_in_proportion_to_the_weights():
    decay, momentum = 0.3, 0.7
    kernel, bias = (np.asarray(weight) for weight in variables())
    velocities = [np.zeros_like(kernel), np.zeros_like(bias)]
    for step in range(4):
        g_kernel, g_bias = (g.numpy() for g in gradients(step))
        trust = np.linalg.norm(kernel) / (np.linalg.norm(g_kernel) + decay * np.linalg.norm(kernel))
        velocities[0] = momentum * velocities[0] + RATE * trust * (g_kernel + decay * kernel)
        velocities[1] = momentum * velocities[1] + RATE * g_bias
        kernel, bias = kernel - velocities[0], bias - velocities[1]
    found = ours(optimizer="lars", weight_decay=decay, momentum=momentum)
    np.testing.assert_allclose(found[0], kernel, rtol=1e-5)
    np.testing.assert_allclose(found[1], bias, rtol=1e-5)


def test_lamb_steps_in_proportion_to_the_weights_and_treats_biases_like_adam():
    decay, (mean, square) = 0.3, np.zeros((2, 3, 2, 4))
    kernel = np.asarray(variables()[0])
    for step in range(4):
        gradient = gradients(step)[0].numpy()
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        update = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-7)
        update += decay * kernel
        kernel = kernel - RATE * np.linalg.norm(kernel) / np.linalg.norm(update) * update
    found = ours(optimizer="lamb", weight_decay=decay)
    np.testing.assert_allclose(found[0], kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[1], ours(optimizer="adam")[1], rtol=1e-5)


def test_muon_moves_kernels_equally_far_in_all_directions_and_the_rest_like_adam():
    kernel, momentum = np.asarray(variables()[0]).reshape(6, 4), np.zeros((6, 4))
    for step in range(4):
        gradient = gradients(step)[0].numpy().reshape(6, 4)
        momentum = 0.95 * momentum + gradient
        left, values, right = np.linalg.svd(gradient + 0.95 * momentum, full_matrices=False)
        values /= np.linalg.norm(values)
        for _ in range(5):
            values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
        assert (values > 0.65).all() and (values < 1.25).all()
        kernel = kernel - RATE * 0.2 * np.sqrt(6) * (left * values) @ right
    found = ours(optimizer="muon")
    np.testing.assert_allclose(found[0].reshape(6, 4), kernel, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[1], ours(optimizer="adam")[1], rtol=1e-5)
    single = [[keras.Variable(np.ones((3, 2, 1), np.float32))] for _ in range(2)]
    for weights, name in zip(single, ("muon", "adam"), strict=True):
        optimizer = make_optimizer(TrainConfig(learning_rate=RATE, optimizer=name), weights)
        optimizer.apply([tf.ones((3, 2, 1))], weights)
    np.testing.assert_array_equal(*(weights[0] for weights in single))  # one output has one direction only


DECAYED = {
    "adamw": 1 - RATE * 0.5,
    "muon": 1 - RATE * 0.5,
    "lamb": 1 - RATE,
    "lars": 1 - RATE,
}  # lamb and lars always step by the rate


@pytest.mark.parametrize("name", NAMES)
def test_without_gradient_kernels_decay_and_biases_stay(name):
    weights = variables()
    kernel, bias = (np.asarray(weight) for weight in weights)
    decay = 0.5 if name in DECAYED else 0.0
    optimizer = make_optimizer(TrainConfig(learning_rate=RATE, optimizer=name, weight_decay=decay), weights)
    optimizer.apply([tf.zeros(weight.shape) for weight in weights], weights)
    np.testing.assert_array_equal(weights[1], bias)
    np.testing.assert_allclose(weights[0], kernel * DECAYED.get(name, 1), rtol=1e-6)


@pytest.mark.parametrize(("name", "direction"), [("lars", np.asarray), ("lamb", np.sign)])
def test_weights_that_are_zero_move(name, direction):
    weights = [keras.Variable(np.zeros((3, 2, 4), np.float32)), keras.Variable(np.zeros(4, np.float32))]
    found = trained(make_optimizer(TrainConfig(learning_rate=RATE, optimizer=name), weights), weights, steps=1)
    np.testing.assert_allclose(found[0], -RATE * direction(gradients(0)[0].numpy()), rtol=1e-3)
