"""The training kernels for AMX against TensorFlow's own convolutions."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ffn import kernels
from ffn.config import ModelConfig
from ffn.model.network import build_network, conv_names, set_weights, weight_shapes

tf = pytest.importorskip("tensorflow")

needs_kernels = pytest.mark.skipif(
    kernels.operations() is None, reason="no AMX here, or make setup has not built the kernels"
)


def passes(config: ModelConfig, precision: str, batch_size: int) -> dict[str, np.ndarray]:
    """Return the updated POM of random inputs, and the gradient of every weight and bias."""
    rng = np.random.default_rng(0)
    network = build_network(config, precision, batch_size)
    weights = {
        name: rng.normal(0, np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.1, shape).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }
    set_weights(network, config, weights)
    image, pom, target = rng.normal(size=(3, batch_size, *config.fov_size_zyx, 1)).astype(np.float32)
    variables = [v for name in conv_names(config) for v in network.get_layer(name).trainable_variables]
    with tf.GradientTape() as tape:
        updated = network([image, pom], training=True)
        loss = tf.reduce_mean(updated * target)
    gradients = zip(weight_shapes(config), tape.gradient(loss, variables), strict=True)
    return {"updated": updated.numpy()} | {name: gradient.numpy() for name, gradient in gradients}


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library_path", lambda: Path("absent"))
    monkeypatch.setattr("ffn.kernels.model.operations", kernels.operations.__wrapped__)


def relative_errors(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.linalg.norm(found[name] - truth[name]) / np.linalg.norm(truth[name])) for name in truth}


@needs_kernels
@pytest.mark.parametrize(
    ("depth", "features", "shape", "batch_size"),
    [
        (1, 32, (5, 7, 9), 1),
        (2, 32, (9, 5, 13), 3),
        (3, 16, (7, 3, 5), 2),
        (2, 48, (5, 9, 3), 1),
        (2, 8, (19, 17, 15), 1),
    ],
)
def test_same_as_float32_within_rounding(
    depth: int, features: int, shape: tuple[int, int, int], batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(depth=depth, features=features, fov_size_zyx=shape, deltas_zyx=(1, 1, 1))
    ours = passes(config, "bfloat16", batch_size)
    truth = passes(config, "float32", batch_size)
    without_kernels(monkeypatch)
    plain = relative_errors(passes(config, "bfloat16", batch_size), truth)
    errors = relative_errors(ours, truth)
    assert errors["updated"] < 0.01
    # a wrong tap, channel or shift errs by 1; rounding of the maps flips some ReLUs, as it does in TensorFlow
    assert max(errors.values()) < 0.15
    assert np.mean(list(errors.values())) < 1.5 * np.mean(list(plain.values()))


@needs_kernels
def test_halo_is_zero_in_memory_used_before() -> None:
    config = ModelConfig(depth=2, features=32, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 1, 1))
    other = ModelConfig(depth=2, features=32, fov_size_zyx=(9, 7, 5), deltas_zyx=(1, 1, 1))
    first = passes(config, "bfloat16", 1)
    passes(other, "bfloat16", 1)  # takes the same buffers, with voxels where the first has its halo
    again = passes(config, "bfloat16", 1)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@needs_kernels
def test_not_a_number_is_not_hidden() -> None:
    config = ModelConfig(depth=2, features=32, fov_size_zyx=(5, 5, 5), deltas_zyx=(1, 1, 1))
    network = build_network(config, "bfloat16", 1)
    image = np.zeros((1, 5, 5, 5, 1), np.float32)
    image[0, 2, 2, 2] = np.nan
    assert np.isnan(network([image, np.zeros_like(image)], training=True).numpy()).any()


THREADS = """
import hashlib, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from ffn.config import ModelConfig
from test_kernels import passes
config = ModelConfig(depth=2, features=32, fov_size_zyx=(17, 19, 21), deltas_zyx=(1, 1, 1))
found = passes(config, "bfloat16", 2)
print(hashlib.sha256(b"".join(found[name].tobytes() for name in sorted(found))).hexdigest())
"""


@needs_kernels
def test_bit_identical_for_any_number_of_threads() -> None:
    digests = [
        subprocess.run(
            [sys.executable, "-c", THREADS, str(threads)],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 2, 3)
    ]
    assert len(digests[0].strip()) == len(hashlib.sha256().hexdigest())
    assert len(set(digests)) == 1


def test_trains_without_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    without_kernels(monkeypatch)
    monkeypatch.setattr(kernels, "cpu_flags", lambda: kernels.CPU_FLAGS)
    config = ModelConfig(depth=1, features=8, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 1))
    with caplog.at_level("INFO"):
        gradients = passes(config, "bfloat16", 1)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert "absent is missing (make setup builds it)" in caplog.text


def test_says_what_the_cpu_lacks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(kernels, "cpu_flags", lambda: kernels.CPU_FLAGS - {"amx_bf16"})
    with caplog.at_level("INFO"):
        assert kernels.operations.__wrapped__() is None
    assert "TensorFlow's convolutions, because the CPU has no amx_bf16" in caplog.text
