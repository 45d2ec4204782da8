"""The published FIB-25 weights, imported: the same answers as an independent evaluation in NumPy."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.inference.engine import create_engine
from ffn.machine.cpu import cpu_flags
from ffn.model.network import build_network, get_weights, num_weights, set_weights
from ffn.model.store import Model, load_model, save_model

from ..engines import HERE

SMALL = ModelConfig(depth=3, features=4, fov_size_zyx=(7, 9, 11), deltas_zyx=(1, 2, 3), image_mean=0, image_stddev=1)


def convolve(volume, kernel, bias):
    """Zero-padded correlation of (Z, Y, X, C) with (D, H, W, C, F): a sum of shifted matrix products in float64."""
    radius = [n // 2 for n in kernel.shape[:3]]
    padded = np.pad(volume, [(r, r) for r in radius] + [(0, 0)])
    total = np.zeros((*volume.shape[:3], kernel.shape[-1]))
    for shift in np.ndindex(kernel.shape[:3]):
        window = tuple(slice(s, s + n) for s, n in zip(shift, volume.shape[:3], strict=True))
        total += padded[window] @ kernel[shift]
    return total + bias


def reference(weights, depth, image, pom_logit):
    """Evaluate the network from its definition."""

    def conv(net, name):
        return convolve(net, weights[f"{name}/weights"].astype(float), weights[f"{name}/biases"].astype(float))

    net = conv(np.maximum(conv(np.stack([image, pom_logit], -1), "conv0_a"), 0), "conv0_b")
    for module in range(1, depth):
        net = net + conv(np.maximum(conv(np.maximum(net, 0), f"conv{module}_a"), 0), f"conv{module}_b")
    return pom_logit + conv(np.maximum(net, 0), "conv_lom")[..., 0]


def random_model(config=SMALL, scale=0.2):
    network = build_network(config)
    rng = np.random.default_rng(3)
    weights = {n: rng.normal(0, scale, w.shape).astype(np.float32) for n, w in get_weights(network, config).items()}
    return Model(config, weights, {})


def patch(config, seed=0):
    rng = np.random.default_rng(seed)
    image, pom = rng.normal(size=(2, *config.fov_size_zyx)).astype(np.float32)
    return image, pom


@pytest.mark.parametrize("engine", HERE)
def test_engines_equal_the_definition_on_a_non_cubic_fov(engine):
    model, (image, pom) = random_model(), patch(SMALL)
    expected = reference(model.weights, SMALL.depth, image, pom)
    batch = create_engine(model, engine, "float32", batch_size=2)
    other_image, other_pom = patch(SMALL, seed=1)
    answer = batch.predict(np.stack([other_image, image]), np.stack([other_pom, pom]))
    assert np.abs(answer[1] - expected).max() < 1e-4
    assert np.abs(answer[0] - reference(model.weights, SMALL.depth, other_image, other_pom)).max() < 1e-4


# without AVX-512, OpenVINO has no bfloat16
@pytest.mark.parametrize("engine", ["tensorflow", *(["openvino"] if "avx512f" in cpu_flags() else [])])
def test_bfloat16_stays_close(engine):
    model, (image, pom) = random_model(), patch(SMALL)
    expected = reference(model.weights, SMALL.depth, image, pom)
    answer = create_engine(model, engine, "bfloat16").predict(image[None], pom[None])[0]
    assert answer.dtype == np.float32
    assert 0 < np.abs(answer - expected).max() < 0.03 * np.abs(expected).max()


def test_network_has_the_published_number_of_weights():
    for depth, expected in ((9, 472_353), (12, 638_433)):
        assert (
            build_network(ModelConfig(depth=depth)).count_params() == num_weights(ModelConfig(depth=depth)) == expected
        )


def test_weights_survive_the_model_folder(tmp_path):
    model = random_model()
    save_model(tmp_path, model)
    network = build_network(SMALL)
    set_weights(network, SMALL, load_model(tmp_path).weights)
    assert all(np.array_equal(model.weights[name], w) for name, w in get_weights(network, SMALL).items())


@pytest.mark.fib25
def test_imported_checkpoint_equals_numpy(shared_checkpoint, tmp_path):
    assert main(["import-checkpoint", str(shared_checkpoint), "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert (model.config.depth, model.config.features, num_weights(model.config)) == (12, 32, 638_433)
    image, pom = patch(model.config)
    expected = reference(model.weights, 12, image, pom)
    answer = create_engine(model, "tensorflow", "float32").predict(image[None], pom[None])[0]
    assert np.abs(answer - expected).max() < 1e-3
