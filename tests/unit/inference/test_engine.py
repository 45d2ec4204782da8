"""Engines: one network, the same answers whatever runs it, whatever the batch."""

import logging
import os

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.inference.engine import create_engine
from ffn.model import precision
from ffn.model.network import weight_shapes
from ffn.model.store import Model

FOV = (5, 7, 9)


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
    engine = create_engine(model, "tensorflow", "float32", threads=1)
    return np.concatenate([engine.predict(i[None], p[None]) for i, p in zip(*fovs(3), strict=True)])


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("engine", ["tensorflow", "openvino"])
def test_engines_agree_in_every_batch_and_keep_its_order(model, expected, engine, batch_size):
    built = create_engine(model, engine, "float32", threads=2, batch_size=batch_size)
    image, pom = fovs(3)
    answer = [built.predict(image[i : i + batch_size], pom[i : i + batch_size]) for i in range(0, 3, batch_size)]
    np.testing.assert_allclose(np.concatenate(answer), expected, atol=1e-4, rtol=0)
    assert np.abs(expected[0] - expected[1]).max() > 0.1


@pytest.mark.parametrize("engine", ["tensorflow", "openvino"])
def test_bfloat16_is_close_and_the_same_on_every_call(model, expected, engine):
    built = create_engine(model, engine, "bfloat16", threads=2, batch_size=3)
    assert built.name == f"{engine} bfloat16"
    answer = built.predict(*fovs(3))
    assert np.abs(answer - expected).max() < 0.1
    assert np.array_equal(answer, built.predict(*fovs(3)))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_openvino_gives_each_fov_of_a_batch_what_it_gives_it_alone(model, kind):
    together = create_engine(model, "openvino", kind, threads=2, batch_size=3).predict(*fovs(3))
    alone = create_engine(model, "openvino", kind, threads=2)
    for index, (image, pom) in enumerate(zip(*fovs(3), strict=True)):
        assert np.array_equal(alone.predict(image[None], pom[None])[0], together[index])


@pytest.mark.parametrize("engine", ["tensorflow", "openvino"])
def test_answers_belong_to_the_caller_and_inputs_stay(model, engine):
    built = create_engine(model, engine, "float32", threads=1)
    image, pom = fovs(2)
    given = image[:1].copy(), pom[:1].copy()
    first = built.predict(*given)
    kept = first.copy()
    second = built.predict(image[1:], pom[1:])
    assert np.array_equal(first, kept) and not np.array_equal(first, second)
    first[:] = 0
    assert np.array_equal(given, (image[:1], pom[:1])) and not np.array_equal(second, first)


def test_openvino_takes_arrays_it_cannot_share(model, expected):
    image, pom = (np.asfortranarray(array[0])[None] for array in fovs(3))
    image.flags.writeable = False
    answer = create_engine(model, "openvino", "float32", threads=1).predict(image, pom)
    np.testing.assert_allclose(answer, expected[:1], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("flags", "chosen", "reason"),
    [({"amx_bf16", "sse"}, "bfloat16", "the CPU has amx_bf16"), ({"sse"}, "float32", "the CPU has neither AMX")],
)
def test_auto_precision_follows_the_cpu_and_says_why(monkeypatch, caplog, flags, chosen, reason):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))
    with caplog.at_level(logging.INFO):
        assert precision.resolve_precision("auto") == chosen
    assert f"precision auto: {chosen}, because {reason}" in caplog.text


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [([(8, 0)], "bfloat16"), ([(9, 0), (7, 5)], "float32"), ([None], "float32")]
)
def test_auto_precision_on_a_gpu_follows_the_oldest_gpu(monkeypatch, capabilities, chosen):
    import tensorflow as tf

    details = lambda gpu: {} if gpu is None else {"compute_capability": gpu}  # noqa: E731
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: capabilities)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    assert precision.resolve_precision("auto", on_gpu=True) == chosen


def test_a_chosen_precision_is_not_questioned():
    assert precision.resolve_precision("float32", on_gpu=True) == "float32"


@pytest.mark.parametrize(("value", "threads"), [("2,1", 2), (" 03 ", 3), ("", len(os.sched_getaffinity(0)))])
def test_threads_follow_the_environment(monkeypatch, caplog, model, value, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with caplog.at_level(logging.INFO):
        create_engine(model, "openvino", "float32")
    assert f"{threads} threads" in caplog.text


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", ",2", "99999999999"])
def test_a_number_of_threads_that_is_none_is_named(monkeypatch, model, value):
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS: found '{value}', expected a number"):
        create_engine(model, "openvino", "float32")
    assert create_engine(model, "openvino", "float32", threads=1).name == "openvino float32"
