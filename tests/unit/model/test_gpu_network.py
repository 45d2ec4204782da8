"""The network by our kernels and its gradient are those of XLA's convolutions, which on a CPU are in their place."""

import numpy as np
import pytest
from gpu_check.network import LARGEST_ERROR
from gpu_check.prepare import float64_logits

from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import Model

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from ffn.kernels import gpu as kernels  # noqa: E402
from ffn.model.jax_network import fastest_form, prepared, updated_pom  # noqa: E402

CONFIG = ModelConfig(depth=2, features=32, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3))
RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32)
    for name, shape in weight_shapes(CONFIG).items()
}
IMAGE, POM = RNG.normal(size=(2, 3, *CONFIG.fov_size_zyx)).astype(np.float32)
IN_ORDER = np.argsort(np.asarray(kernels.packed_kernel(jnp.arange(27 * 32 * 32).reshape(3, 3, 3, 32, 32))).ravel())


def conv(rows, kernel, fov):
    kernel = kernel.ravel()[IN_ORDER].reshape(3, 3, 3, 32, 32)
    maps = kernels.unflattened(rows, fov)
    axes = ("NDHWC", "DHWIO", "NDHWC")
    return jax.lax.conv_general_dilated(maps, kernel, (1, 1, 1), "SAME", dimension_numbers=axes, precision="highest")


def conv_relu(rows, kernel, bias, fov):
    return kernels.flattened(jax.nn.relu(conv(rows, kernel, fov) + bias))


def conv_add(rows, kernel, bias, before, fov):
    net = kernels.flattened(conv(rows, kernel, fov) + bias + kernels.unflattened(before, fov))
    return net, jax.nn.relu(net)


def conv_back(rows, kernel, active, before, fov):
    return before + jnp.where(active > 0, kernels.flattened(conv(rows, kernel, fov)), 0)


def weight_gradient(rows, gradient, fov):
    def product(kernel):
        return (conv(rows, kernels.packed_kernel(kernel), fov) * kernels.unflattened(gradient, fov)).sum()

    return jax.grad(product)(jnp.zeros((3, 3, 3, 32, 32)))


@pytest.fixture
def by_xla(monkeypatch):
    for function in (conv_relu, conv_add, conv_back, weight_gradient):
        monkeypatch.setattr(kernels, function.__name__, function)


def gradients(precision, form):
    def loss(params):
        return (updated_pom(params, IMAGE, POM, CONFIG, precision, form) ** 2).mean()

    return jax.jit(jax.grad(loss))({name: jnp.asarray(array) for name, array in WEIGHTS.items()})


def test_logits_and_gradients_are_those_of_volumes(by_xla):
    weights = prepared(WEIGHTS, CONFIG, "float32", "kernels")
    found = updated_pom(weights, IMAGE, POM, CONFIG, "float32", "kernels")
    np.testing.assert_allclose(found, updated_pom(WEIGHTS, IMAGE, POM, CONFIG, form="volumes"), atol=2e-5)
    expected = gradients("float32", "volumes")
    for name, found in gradients("float32", "kernels").items():
        assert found.shape == expected[name].shape
        assert np.linalg.norm(found - expected[name]) < 1e-5 * np.linalg.norm(expected[name]), name


@pytest.mark.parametrize(("features", "fov"), [(16, (5, 7, 9)), (32, (5, 7, 301))])
def test_networks_that_do_not_fit_are_left_to_xla(features, fov):
    assert str(features if features != 32 else fov) in kernels.obstacle(fov, features)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_logits_on_a_gpu_are_those_of_float64(gpu, precision):
    assert fastest_form(CONFIG, precision) == "kernels"
    found = np.asarray(updated_pom(prepared(WEIGHTS, CONFIG, precision), IMAGE, POM, CONFIG, precision))
    true = np.stack([float64_logits(Model(CONFIG, WEIGHTS, {}), *fov) for fov in zip(IMAGE, POM, strict=True)])
    assert np.linalg.norm(found - true) < LARGEST_ERROR[precision] * np.linalg.norm(true - POM)


@pytest.mark.gpu
def test_gradients_on_a_gpu_are_those_of_volumes(gpu):
    expected = gradients("float32", "volumes")
    for name, found in gradients("bfloat16", "kernels").items():
        # On a CPU, XLA's in bfloat16 are off by up to 6 %.
        assert np.linalg.norm(found - expected[name]) < 0.1 * np.linalg.norm(expected[name]), name
