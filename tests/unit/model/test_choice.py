"""What auto takes is chosen once: what the device tells."""

import logging
from types import SimpleNamespace

import pytest
import yaml

from ffn.errors import ConfigError
from ffn.machine import gpu
from ffn.model import choice
from ffn.model.choice import ASKED_FOR, Choice, choose_once, with_precision


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(choice, "gpu_visible", lambda: False)
    monkeypatch.setattr(choice, "jax_gpus", list)


def never():
    raise AssertionError("chose again")


def test_the_first_job_of_a_folder_chooses_for_all(tmp_path, caplog):
    path, chosen = tmp_path / "machine" / "x.yaml", Choice("openvino", "bfloat16", "the CPU has AMX")
    with caplog.at_level(logging.INFO):
        assert choose_once(path, lambda: chosen) == choose_once(path, never) == chosen
    assert [f"{path}" in message for message in caplog.messages] == [True, True]
    choices = iter([Choice("openvino", "float32"), Choice("openvino", "bfloat16")])
    assert [choose_once(None, lambda: next(choices)).precision for _ in range(2)] == ["float32", "bfloat16"]


def test_of_jobs_that_choose_at_the_same_time_the_first_to_record_decides(tmp_path):
    first, second = Choice("openvino", "float32", "as one says"), Choice("openvino", "bfloat16", "as another says")

    def slowly():
        assert choose_once(tmp_path / "x.yaml", lambda: first) == first
        return second

    assert choose_once(tmp_path / "x.yaml", slowly) == first


@pytest.mark.parametrize(("engine", "precision"), [("tensorflow", "bfloat16"), ("jax", "float16")])
def test_a_choice_for_a_gpu_needs_one(tmp_path, monkeypatch, engine, precision):
    path, chosen = tmp_path / "x.yaml", Choice(engine, precision, "a GPU is visible", gpu=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(choice, "sees_gpu", lambda engine: True)
        assert choose_once(path, lambda: chosen) == chosen
    with pytest.raises(ConfigError, match=f"x.yaml: {engine} {precision}"):
        choose_once(path, never)


def test_tensorflow_chosen_for_a_cpu_does_not_take_a_gpu(tmp_path, monkeypatch):
    chosen = {name: Choice(name, "float32") for name in ("tensorflow", "openvino")}
    for name, recorded in chosen.items():
        choose_once(tmp_path / f"{name}.yaml", lambda recorded=recorded: recorded)
    monkeypatch.setattr(choice, "gpu_visible", lambda: True)
    assert choose_once(tmp_path / "openvino.yaml", never) == chosen["openvino"]
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        choose_once(tmp_path / "tensorflow.yaml", never)


GOOD = {"engine": "openvino", "precision": "float32", "reason": "", "gpu": False, "cpu": ""}
WRONG = [{"engine": "openvin"}, {"precision": 32}, {"engine": ["openvino"]}]


@pytest.mark.parametrize(
    "text",
    ["", "engine: openvino", "- 1", "a: [", "engine: a\0", *(yaml.safe_dump({**GOOD, **wrong}) for wrong in WRONG)],
)
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match="x.yaml"):
        choose_once(tmp_path / "x.yaml", never)


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [([(8, 0)], "bfloat16"), ([(9, 0), (7, 5)], "float32"), ([None], "float32")]
)
def test_the_oldest_gpu_decides(monkeypatch, capabilities, chosen):
    import tensorflow as tf

    def details(gpu):
        return {} if gpu is None else {"compute_capability": gpu}

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: capabilities)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    monkeypatch.setattr(choice, "gpu_visible", lambda: True)
    assert with_precision("tensorflow", ASKED_FOR, "auto").precision == chosen


@pytest.mark.parametrize(
    ("half", "capabilities", "chosen"),
    [
        ("bfloat16", ["9.0"], "bfloat16"),
        ("bfloat16", ["12.0", "7.5"], "float32"),
        ("float16", ["12.0", "7.5"], "float16"),
        ("float16", ["6.1"], "float32"),
        ("float16", ["gfx942"], "float32"),
    ],
)
def test_the_oldest_gpu_that_jax_sees_decides(monkeypatch, half, capabilities, chosen):
    gpus = [SimpleNamespace(compute_capability=text) for text in capabilities]
    for module in (choice, gpu):
        monkeypatch.setattr(module, "jax_gpus", lambda: gpus)
    assert with_precision("jax", ASKED_FOR, "auto", half).precision == chosen
