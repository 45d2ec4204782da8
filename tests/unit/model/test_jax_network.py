"""The JAX network computes what the Keras network does, and NumPy in float64, on a CPU and on a GPU."""

import numpy as np
import pytest
from gpu_check.network import LARGEST_ERROR
from gpu_check.prepare import float64_logits

from ffn.config import ModelConfig
from ffn.model.jax_network import updated_pom
from ffn.model.network import weight_shapes
from ffn.model.store import Model

jax = pytest.importorskip("jax")

CONFIG = ModelConfig(depth=2, features=8, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3))
RNG = np.random.default_rng(0)
WEIGHTS = {
    name: RNG.normal(0, np.prod(shape[:-1]) ** -0.5, shape).astype(np.float32)
    for name, shape in weight_shapes(CONFIG).items()
}
IMAGE, POM = RNG.normal(size=(2, 3, *CONFIG.fov_size_zyx)).astype(np.float32)


def logits(precision, form=None):
    return jax.jit(lambda *fovs: updated_pom(*fovs, CONFIG, precision, form))(WEIGHTS, IMAGE, POM)


@pytest.mark.parametrize("form", ["volumes", "planes"])
@pytest.mark.parametrize("precision", LARGEST_ERROR)
def test_logits_are_those_of_float64(jax_device, precision, form):
    with jax.default_device(jax_device):
        found = logits(precision, form)
    assert found.devices() == {jax_device}
    true = np.stack([float64_logits(Model(CONFIG, WEIGHTS, {}), *fov) for fov in zip(IMAGE, POM, strict=True)])
    error = np.linalg.norm(found - true) / np.linalg.norm(true - POM)
    assert error < LARGEST_ERROR[precision]
    assert precision == "float32" or error > LARGEST_ERROR["float32"]


def test_gradients_reach_every_weight_in_float32():
    def loss(params):
        return (updated_pom(params, IMAGE, POM, CONFIG, "bfloat16") ** 2).mean()

    gradients = jax.jit(jax.grad(loss))({name: jax.numpy.asarray(array) for name, array in WEIGHTS.items()})
    assert {name: array.shape for name, array in gradients.items()} == weight_shapes(CONFIG)
    assert all(array.dtype == np.float32 and np.abs(array).max() > 0 for array in gradients.values())
