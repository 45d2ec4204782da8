"""What auto takes is chosen once."""

import functools
import logging
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import yaml

from ffn.errors import ConfigError
from ffn.model import choice
from ffn.model.choice import Choice, choose_once


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(choice, "gpu_visible", lambda: False)
    monkeypatch.setattr(choice, "jax_gpus", list)


def never():
    raise AssertionError("chose again")


def test_the_first_job_chooses_and_all_others_take_the_same(tmp_path, caplog):
    path, chosen = tmp_path / "machine" / "x.yaml", Choice("openvino", "bfloat16", "the CPU has AMX")
    with caplog.at_level(logging.INFO):
        assert choose_once(path, lambda: chosen) == choose_once(path, never) == chosen
    assert caplog.messages == [f"auto: openvino bfloat16, because the CPU has AMX ({path})"] * 2


def job(path, barrier, number):
    def choose():
        barrier.wait(300)
        return Choice("openvino", "float32", f"job {number} says so")

    return choose_once(path, choose)


def test_jobs_that_choose_at_the_same_time_agree(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3])  # the processes import this module
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(3, context) as jobs:
        run = functools.partial(job, tmp_path / "x.yaml", manager.Barrier(3))
        assert len(set(jobs.map(run, range(3)))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.yaml"]


def test_without_a_folder_every_job_chooses_for_itself():
    choices = iter([Choice("openvino", "float32"), Choice("openvino", "bfloat16")])
    assert [choose_once(None, lambda: next(choices)).precision for _ in range(2)] == ["float32", "bfloat16"]


def test_a_job_on_another_cpu_says_that_the_choice_may_be_slow_there(tmp_path, monkeypatch, caplog):
    path = tmp_path / "x.yaml"
    for cpu in ("Xeon with AMX", "", "old Xeon"):
        monkeypatch.setattr(choice, "cpu_name", lambda cpu=cpu: cpu)
        choose_once(path, lambda: Choice("openvino", "bfloat16", "the CPU has AMX"))
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(
        f"{path}: openvino bfloat16 was chosen on another CPU (Xeon with AMX) than this one (old Xeon), where it may"
    )


def test_a_choice_for_a_gpu_needs_one(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    monkeypatch.setattr(choice, "gpu_visible", lambda: True)
    choose_once(path, lambda: Choice("tensorflow", "bfloat16", "a GPU is visible", gpu=True))
    monkeypatch.setattr(choice, "gpu_visible", lambda: False)
    message = r"x\.yaml: tensorflow bfloat16 was chosen for a GPU, and TensorFlow sees none here\. Start this job where"
    with pytest.raises(ConfigError, match=message):
        choose_once(path, never)


def test_jax_chosen_for_a_gpu_needs_one(tmp_path, monkeypatch):
    path, chosen = tmp_path / "x.yaml", Choice("jax", "bfloat16", "JAX sees a GPU", gpu=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(choice, "jax_gpus", lambda: ["a GPU"])
        assert choose_once(path, lambda: chosen) == chosen
    with pytest.raises(ConfigError, match=r"jax bfloat16 was chosen for a GPU, and JAX sees none here\."):
        choose_once(path, never)


def test_tensorflow_chosen_for_a_cpu_does_not_take_a_gpu(tmp_path, monkeypatch):
    chosen = {name: Choice(name, "float32") for name in ("tensorflow", "openvino")}
    for name, recorded in chosen.items():
        choose_once(tmp_path / f"{name}.yaml", lambda recorded=recorded: recorded)
    monkeypatch.setattr(choice, "gpu_visible", lambda: True)
    assert choose_once(tmp_path / "openvino.yaml", never) == chosen["openvino"]
    with pytest.raises(ConfigError, match=r"was chosen for a CPU, and TensorFlow sees a GPU here\. Hide it"):
        choose_once(tmp_path / "tensorflow.yaml", never)


GOOD = {"engine": "openvino", "precision": "float32", "reason": "", "gpu": False, "cpu": ""}
WRONG = [{"engine": "openvin"}, {"precision": 32}, {"engine": ["openvino"]}, {"reason": None}, {"gpu": "no"}]


@pytest.mark.parametrize(
    "text",
    ["", "engine: openvino", "- 1", "a: [", "engine: a\0", *(yaml.safe_dump({**GOOD, **wrong}) for wrong in WRONG)],
)
def test_a_damaged_record_is_named(tmp_path, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"x\.yaml: cannot be read, expected what 'auto' took .* Remove it, and what"):
        choose_once(tmp_path / "x.yaml", never)
