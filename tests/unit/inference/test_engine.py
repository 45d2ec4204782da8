"""Engines: the same network gives the same answers with any engine and any batch."""

import contextlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from gpu_check.prepare import float64_logits

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.inference.lanes import create_engine
from ffn.machine.limits import cpu_flags
from ffn.model.network import weight_shapes
from ffn.model.store import Model

from ...engines import LACKING

FOV = (5, 7, 9)
HERE = ["openvino"] if LACKING["kernels"] else ["openvino", "kernels"]


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    config = ModelConfig(depth=2, features=4, fov_size_zyx=FOV, deltas_zyx=(1, 2, 3), image_mean=0, image_stddev=1)
    weights = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in weight_shapes(config).items()}
    return Model(config, weights, {})


def fovs(num):
    rng = np.random.default_rng(1)
    return rng.normal(size=(2, num, *FOV)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(model):
    return np.stack([float64_logits(model, image, pom) for image, pom in zip(*fovs(3), strict=True)])


@pytest.mark.parametrize("engine", HERE)
def test_engines_agree_and_keep_the_order_of_fovs(model, expected, engine):
    answer = create_engine(model, engine, "float32", threads=2).predict(*fovs(3))
    np.testing.assert_allclose(answer, expected, atol=1e-4, rtol=0)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


def test_half_precision_is_close_to_float32_and_repeatable_or_refused(model, expected):
    if "avx512f" not in cpu_flags():  # OpenVINO would compute in float32 instead
        with pytest.raises(ConfigError, match="precision: found bfloat16"):
            create_engine(model, "openvino", "bfloat16", threads=2)
        return
    built = create_engine(model, "openvino", "bfloat16", threads=2)
    assert built.name == "openvino bfloat16"
    answer = built.predict(*fovs(3))
    assert 0 < np.abs(answer - expected).max() < 0.1
    assert np.array_equal(answer, built.predict(*fovs(3)))


@pytest.mark.parametrize("engine", HERE)
def test_an_engine_keeps_neither_its_answers_nor_its_inputs(model, engine):
    built = create_engine(model, engine, "float32", threads=1)
    image, pom = fovs(2)
    given = image[:1].copy(), pom[:1].copy()
    first = built.predict(*given)
    kept = first.copy()
    second = built.predict(image[1:], pom[1:])
    assert np.array_equal(first, kept) and not np.array_equal(first, second)
    first[:] = 0
    assert np.array_equal(given, (image[:1], pom[:1])) and not np.array_equal(second, first)


def test_an_engine_is_named_that_is_missing_or_takes_another_precision(model, monkeypatch):
    monkeypatch.setattr("ffn.inference.lanes.cpu_flags", lambda: {"avx2", "fma"})
    create_engine(model, "openvino", "float32", threads=1)
    with pytest.raises(ConfigError, match="precision: found bfloat16"):
        create_engine(model, "openvino", "bfloat16", threads=1)
    with pytest.raises(ConfigError, match="engine: found tensorflow"):
        create_engine(model, "tensorflow", "float32", threads=1)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError, match="engine: found openvino"):
        create_engine(model, "openvino", "float32", threads=1)


def test_openvino_runs_the_published_depth_without_tensorflow(monkeypatch):
    """Which takes seconds to import; and its files, read by OpenVINO, lacked weights from a depth of 12 on."""
    for module in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, module, None)  # as where they are not installed
    config = ModelConfig(depth=12, features=32, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 1))
    weights = {name: np.full(shape, 1e-4, np.float32) for name, shape in weight_shapes(config).items()}
    image, pom = np.ones((2, 1, *config.fov_size_zyx), np.float32)
    answer = create_engine(Model(config, weights, {}), "openvino", "float32", threads=1).predict(image, pom)
    assert np.isfinite(answer).all() and (answer > pom).all()


def test_a_signal_is_handled_after_engines_of_openvino_came_and_went():
    """SIGTERM saves a flood. The stack that OpenVINO gave its handler must still be there."""
    code = """
import signal
import numpy as np
from ffn.config import ModelConfig
from ffn.inference.lanes import create_engine
from ffn.model.network import weight_shapes
from ffn.model.store import Model

config = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
model = Model(config, {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}, {})
first, second = (create_engine(model, "openvino", "float32", threads=1) for _ in range(2))
del first
del second
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_openvino_leaves_its_threads_free_to_run_on_any_core_of_the_process():
    """Otherwise jobs of one thread, side by side, would all run on the first core."""
    config = ModelConfig(depth=4, features=16, fov_size_zyx=(25, 25, 25), deltas_zyx=(1, 2, 3))
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    built = create_engine(Model(config, weights, {}), "openvino", "float32", threads=1)
    image, pom = np.zeros((2, 1, *config.fov_size_zyx), np.float32)
    computing = threading.Thread(target=lambda: [built.predict(image, pom) for _ in range(10)])
    computing.start()
    masks = set()
    while computing.is_alive():
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                masks.add(frozenset(os.sched_getaffinity(int(thread))))
    assert masks == {frozenset(os.sched_getaffinity(0))}
