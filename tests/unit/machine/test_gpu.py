"""GPUs: whether there are any, and processes that do not know each other take different ones."""

import gc
import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ffn.machine import gpu

TAKE = "import sys; from ffn.machine.gpu import take_gpu; print(take_gpu(2), take_gpu(2), flush=True); sys.stdin.read()"


@pytest.fixture
def take(tmp_path):
    """Return a function that starts a process which takes one of two GPUs, twice."""
    started = []

    def start(**variables):
        own = {"SLURM_JOB_ID": tmp_path.name + str(os.getpid()), "PYTHONPATH": os.pathsep.join(sys.path)}
        environment = {**os.environ, **own, **variables}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([sys.executable, "-c", TAKE], env=environment, **pipes)
        started.append(process)
        return process, process.stdout.readline().split()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_each_process_gets_its_own_gpu_until_all_are_taken(take):
    first, taken = take()
    assert taken == ["0", "0"], "a process keeps the one that it has"
    assert take()[1] == ["1", "1"]
    assert take()[1] == ["0", "0"], "shared, when all are taken"
    first.kill()
    first.wait()
    assert take()[1] == ["0", "0"]


def test_gpus_are_told_apart_by_the_names_from_the_scheduler(take):
    assert take(CUDA_VISIBLE_DEVICES="2,3")[1] == take(CUDA_VISIBLE_DEVICES="0,1")[1] == ["0", "0"]
    assert take(CUDA_VISIBLE_DEVICES="0,3")[1] == ["1", "1"]


def test_jobs_that_number_their_gpus_from_0_do_not_block_each_other(take):
    assert [take()[1], take()[1]] == [["0", "0"], ["1", "1"]]
    other = {"SLURM_JOB_ID": f"another{os.getpid()}"}
    assert [take(**other)[1], take(**other)[1]] == [["0", "0"], ["1", "1"]]


@pytest.mark.parametrize(
    ("installed", "imports"),
    [({"tensorflow-cpu"}, False), ({"tensorflow"}, True), ({"tensorflow-cpu", "tensorflow"}, True), (set(), True)],
)
def test_tensorflow_is_not_asked_where_it_is_the_package_for_cpus_alone(installed, imports, monkeypatch):
    gpus = ["GPU:0"]
    config = SimpleNamespace(list_physical_devices=lambda kind: gpus)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config) if imports else None)
    monkeypatch.setattr(gpu.metadata, "distributions", lambda name: {name} & installed)
    assert gpu.gpu_visible() == imports
    gpus.clear()
    assert not gpu.gpu_visible()


def test_tensorflow_is_loaded_without_packages_that_a_later_import_finds(tmp_path, monkeypatch):
    source = "import gc\ntry:\n    import other\nexcept ImportError:\n    other, collects = None, gc.isenabled()\n"
    (tmp_path / "tensorflow.py").write_text(source)
    (tmp_path / "other.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gpu, "UNUSED", ("other",))
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    del sys.modules["tensorflow"]
    gpu.load_tensorflow()
    assert sys.modules["tensorflow"].other is None
    assert not sys.modules["tensorflow"].collects and gc.isenabled()
    importlib.import_module("other")


@pytest.mark.parametrize(
    ("script", "found"),
    [("echo NVIDIA A100; echo NVIDIA A100", ["NVIDIA A100"] * 2), ("echo NVIDIA-SMI has failed.; exit 9", [])],
)
def test_the_driver_names_its_gpus(script, found, tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu.cards() == found


@pytest.mark.parametrize(
    ("cards", "is_cuda_build", "named"), [([], False, "--gpus"), (["A100"], False, "GPU=1"), (["A100"], True, "-1")]
)
def test_why_tensorflow_sees_no_gpu(cards, is_cuda_build, named, monkeypatch):
    build = SimpleNamespace(get_build_info=lambda: {"is_cuda_build": is_cuda_build})
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(sysconfig=build))
    monkeypatch.setattr(gpu, "cards", lambda: cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert named in gpu.why_no_gpu()
