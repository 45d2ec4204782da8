"""The training kernels against TensorFlow's own convolutions: with emulated instructions on every CPU, and natively on
one that has theirs.
"""

import functools
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from ffn import kernels
from ffn.config import ModelConfig
from ffn.kernels import model
from ffn.machine.gpu import gpu_visible
from ffn.machine.limits import cpu_flags
from ffn.model.network import build_network, conv_names, weight_shapes

from .conftest import FOR_TESTS, INSTRUCTIONS, KERNELS, SANITIZERS

HAS_AMX = kernels.CPU_FLAGS <= cpu_flags() and not gpu_visible()
EMULATED = pytest.param("emulated", marks=pytest.mark.slow)  # half a minute to compile
HAS_AVX2 = kernels.FLOAT32_FLAGS <= cpu_flags() and kernels.library_path().exists() and not gpu_visible()


def compile_cpp(*arguments: str | Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler; Debian's package is called g++")
    # A CPU without registers of 64 bytes takes emulated vectors as arguments in memory, which GCC would note.
    subprocess.run(["c++", "-Og", "-g1", "-Wno-psabi", *map(str, arguments)], check=True)


@pytest.mark.parametrize(
    ("flags", "gpu", "level", "reason"),
    [
        (kernels.FLOAT32_FLAGS, False, "WARNING", r"none.so is missing \(make setup"),
        (kernels.FLOAT32_FLAGS, True, "INFO", "TensorFlow sees a GPU"),
        ((), False, "INFO", "avx2"),
    ],
)
def test_a_library_that_was_not_built_is_warned_of(monkeypatch, caplog, tmp_path, flags, gpu, level, reason):
    """After an update without `make setup`, training took several times as long, and only a line of the log said so."""
    monkeypatch.setattr(kernels, "library_path", lambda: tmp_path / "none.so")
    monkeypatch.setattr(kernels, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(kernels, "gpu_visible", lambda: gpu)
    with caplog.at_level(logging.INFO, logger="ffn.kernels"):
        assert kernels.operations.__wrapped__("float32") is None
    (record,) = caplog.records
    assert record.levelname == level and re.search(reason, record.message)


@pytest.fixture(scope="session")
def emulated_library(float32_objects: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """EmulatedForward and EmulatedBackward, with emulated instructions; TensorFlow can also load the native ones."""
    folder = tmp_path_factory.mktemp("emulated")
    ops, network, library = (folder / name for name in ("ops.cc", "network.o", "library.so"))
    ops.write_text((KERNELS / "ops.cc").read_text().replace('"Ffn', '"Emulated'))
    compile_cpp("-std=c++20", "-fPIC", "-I", FOR_TESTS / "emulated", "-c", KERNELS / "network.cc", "-o", network)
    flags = ["-O0", "-g0", "-w", "-I", KERNELS, *tf.sysconfig.get_compile_flags(), "-fPIC", "-shared"]
    compile_cpp(*flags, ops, network, *float32_objects, *tf.sysconfig.get_link_flags(), "-o", library)
    return library


@functools.cache
def emulated_operations(library: Path) -> SimpleNamespace:
    """Load the emulated operations; TensorFlow takes their gradient once."""
    operations = tf.load_op_library(str(library))
    tf.RegisterGradient("EmulatedForward")(model._gradient)
    return SimpleNamespace(ffn_forward=operations.emulated_forward, ffn_backward=operations.emulated_backward)


def take(library: str, request: pytest.FixtureRequest, precision: str) -> Path:
    """Let the network take its operations from a library."""
    if library == "native":
        assert kernels.operations(precision) is not None, "make setup builds the library"
        return kernels.library_path()
    path = request.getfixturevalue("emulated_library")
    request.getfixturevalue("monkeypatch").setattr(model, "operations", lambda precision: emulated_operations(path))
    return path


@pytest.fixture(params=[EMULATED, *["native"] * HAS_AMX])
def library(request: pytest.FixtureRequest) -> Path:
    """The library of operations in bfloat16."""
    return take(request.param, request, "bfloat16")


@pytest.fixture(params=[EMULATED, *["native"] * HAS_AVX2])
def float32_library(request: pytest.FixtureRequest) -> Path:
    """The library of operations in float32."""
    return take(request.param, request, "float32")


def random_inputs(config: ModelConfig, batch_size: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return all weights and biases, and image, POM and target (3, B, Z, Y, X, 1)."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(0, np.prod(shape[:-1]) ** -0.5 if len(shape) > 1 else 0.1, shape).astype(np.float32)
        for name, shape in weight_shapes(config).items()
    }
    fovs = rng.normal(size=(3, batch_size, *config.fov_size_zyx, 1)).astype(np.float32)
    fovs[2] += 3  # gradients that do not cancel out, of which rounding would be a larger part
    return weights, fovs


def passes(config: ModelConfig, precision: str, batch_size: int) -> dict[str, np.ndarray]:
    """Return the updated POM of random inputs, and the gradient of every weight and bias."""
    weights, (image, pom, target) = random_inputs(config, batch_size)
    network = build_network(config, precision, batch_size)
    for name in conv_names(config):
        network.get_layer(name).set_weights([weights[f"{name}/weights"], weights[f"{name}/biases"]])
    variables = [v for name in conv_names(config) for v in network.get_layer(name).trainable_variables]
    with tf.GradientTape() as tape:
        updated = network([image, pom], training=True)
        loss = tf.reduce_mean(updated * target)
    gradients = zip(weight_shapes(config), tape.gradient(loss, variables), strict=True)
    return {"updated": updated.numpy()} | {name: gradient.numpy() for name, gradient in gradients}


def plain_passes(config: ModelConfig, precision: str, batch_size: int) -> dict[str, np.ndarray]:
    """Return the same from TensorFlow's own convolutions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "operations", lambda precision: None)
        return passes(config, precision, batch_size)


def relative_errors(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.linalg.norm(found[name] - truth[name]) / np.linalg.norm(truth[name])) for name in truth}


def assert_close(errors: dict[str, float]) -> None:
    assert errors["updated"] < 0.01
    # one tap missing of 27 errs by 0.2, a wrong channel or shift by 1; rounding of the maps flips some ReLUs
    assert max(errors.values()) < 0.1, errors


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("depth", "features", "shape", "batch_size"),
    [(2, 32, (9, 5, 13), 3), (3, 16, (7, 3, 5), 2), (2, 48, (5, 9, 3), 1), (2, 8, (19, 17, 15), 1)],
)
def test_same_as_float32_within_rounding(depth, features, shape, batch_size):
    config = ModelConfig(depth=depth, features=features, fov_size_zyx=shape, deltas_zyx=(1, 1, 1))
    ours = passes(config, "bfloat16", batch_size)
    truth = plain_passes(config, "float32", batch_size)
    plain = relative_errors(plain_passes(config, "bfloat16", batch_size), truth)
    errors = relative_errors(ours, truth)
    assert_close(errors)
    assert np.mean(list(errors.values())) < 1.5 * np.mean(list(plain.values()))


@pytest.mark.usefixtures("float32_library")
@pytest.mark.parametrize(
    ("depth", "features", "shape", "batch_size"),
    [(2, 32, (9, 5, 13), 3), (3, 16, (17, 3, 5), 2), (2, 72, (3, 5, 7), 1), (2, 8, (5, 17, 35), 1)],
)
def test_float32_equals_tensorflow(depth, features, shape, batch_size):
    config = ModelConfig(depth=depth, features=features, fov_size_zyx=shape, deltas_zyx=(1, 1, 1))
    errors = relative_errors(passes(config, "float32", batch_size), plain_passes(config, "float32", batch_size))
    assert 0 < max(errors.values()) < 3e-5, errors  # not the same bits, or TensorFlow's convolutions were used


@pytest.mark.usefixtures("library", "float32_library")
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_halo_is_zero_in_memory_used_before(precision):
    config = ModelConfig(depth=2, features=32, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 1, 1))
    other = ModelConfig(depth=2, features=32, fov_size_zyx=(9, 7, 5), deltas_zyx=(1, 1, 1))
    first = passes(config, precision, 1)
    passes(other, precision, 1)  # takes the same buffers, with voxels where the first has its halo
    again = passes(config, precision, 1)
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("channel", [0, 16])  # of both vectors that hold a position
def test_not_a_number_in_a_channel_is_not_hidden(channel):
    config = ModelConfig(depth=1, features=32, fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1))
    network = build_network(config, "bfloat16", 1)
    bias = np.zeros(32, np.float32)
    bias[channel] = np.nan
    network.get_layer("conv0_a").bias.assign(bias)
    zeros = np.zeros((1, 3, 3, 3, 1), np.float32)
    assert np.isnan(network([zeros, zeros], training=True).numpy()).all()


def hashes(*words: str) -> list[str]:
    """Return a hash of the passes by each library, which its precision follows."""
    config, found = ModelConfig(depth=2, features=32, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 1, 1)), []
    for library, precision in zip(words[::2], words[1::2], strict=True):
        with pytest.MonkeyPatch.context() as patch:
            if library != str(kernels.library_path()):
                patch.setattr(model, "operations", lambda _, path=Path(library): emulated_operations(path))
            made = passes(config, precision, 3)
        found.append(hashlib.sha256(b"".join(made[name].tobytes() for name in sorted(made))).hexdigest())
    return found


THREADS = """
import sys
from ffn.machine.gpu import load_tensorflow
load_tensorflow()
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tests.unit.kernels.test_kernels import hashes
print(*hashes(*sys.argv[2:]))
"""


@pytest.mark.slow
def test_bit_identical_for_any_number_of_threads(emulated_library):
    """The number is that of a process."""
    cases = [(emulated_library, "bfloat16"), (emulated_library, "float32")]
    cases += [(kernels.library_path(), "bfloat16")] * HAS_AMX + [(kernels.library_path(), "float32")] * HAS_AVX2
    words = [str(word) for case in cases for word in case]
    here = tf.config.threading.get_intra_op_parallelism_threads() or len(os.sched_getaffinity(0))
    command = [sys.executable, "-c", THREADS, "3" if here == 1 else "1", *words]
    others = subprocess.run(command, cwd=KERNELS.parents[1], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert others.split() == hashes(*words)


@pytest.fixture(scope="session")
def sanitized_driver(
    strict_kernels: Path, sanitized_objects: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Both passes without TensorFlow, under ASan and UBSan, in buffers of the exact size that hold NaN at first."""
    driver = tmp_path_factory.mktemp("training") / "driver"
    sources = ["-I", FOR_TESTS / "emulated", "-I", strict_kernels]
    sources += [strict_kernels / "network.cc", FOR_TESTS / "driver.cc"]
    compile_cpp("-std=c++20", *SANITIZERS, *sources, *sanitized_objects, "-o", driver)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "features", "shape", "batch_size"),
    [
        (1, 8, (1, 1, 1), 1),
        (2, 16, (3, 1, 7), 3),
        (2, 24, (8, 3, 1), 2),
        (2, 40, (5, 4, 6), 1),
        (1, 64, (2, 5, 1), 1),
        (1, 16, (15, 17, 17), 1),
    ],
)
def test_no_stray_access_and_no_undefined_behaviour(depth, features, shape, batch_size, sanitized_driver):
    config = ModelConfig.model_construct(depth=depth, features=features, fov_size_zyx=shape)  # allows axes of 1
    weights, (image, pom, target) = random_inputs(config, batch_size)
    arrays = [*weights.values(), image, pom, target / np.float32(target.size)]
    truth = plain_passes(config, "float32", batch_size)
    for lanes in (0, *INSTRUCTIONS):  # 0: bfloat16
        command = [sanitized_driver, *map(str, (lanes, batch_size, *shape, features, 2 * depth))]
        results = [
            subprocess.run([*command, threads], input=b"".join(map(np.ndarray.tobytes, arrays)), capture_output=True)
            for threads in ("1", "3")
        ]
        assert [result.stderr.decode() for result in results] == ["", ""]
        assert results[0].stdout == results[1].stdout
        ends = np.cumsum([array.size for array in truth.values()])
        parts = np.split(np.frombuffer(results[0].stdout, np.float32), ends[:-1])
        found = {name: part.reshape(truth[name].shape) for name, part in zip(truth, parts, strict=True)}
        errors = relative_errors(found, truth)
        if lanes:
            assert max(errors.values()) < 3e-5, errors
        else:
            assert_close(errors)
