"""The processes of a node load TensorFlow from one copy on its disk."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffn.io import node_copy
from ffn.training import near_tensorflow
from ffn.training.near_tensorflow import load_from_node

PROGRAM = """
import logging, sys
from pathlib import Path
from ffn.training.near_tensorflow import load_from_node

logging.basicConfig(level="INFO", format="%(message)s")
load_from_node(sys.argv[1])
opened = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
import tensorflow as tf
import horovod.tensorflow

shared = f"{sys.argv[2]}/tensorflow/"
print(Path(tf.__file__).parents[1], int(tf.reduce_sum(tf.constant([1, 2]))))
print(sum(name.startswith(shared) for name in opened), Path("/proc/self/maps").read_text().count(shared))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("needs_horovod")
def test_tensorflow_is_copied_once_and_read_from_the_copy_by_all_processes(tmp_path):
    site = Path(importlib.util.find_spec("tensorflow").origin).parents[1]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(site)]
    ranks = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    (copy,) = tmp_path.glob("ffn-copies-*/*/*/copy")
    assert [out for out, _ in told] == [f"{copy} 3\n0 0\n"] * 2, "nothing of TensorFlow is read where it is shared"
    assert sorted(message.count("staged ") for _, message in told) == [0, 1]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder for packages that comes first, with a small TensorFlow, headers, and a program for GPUs."""
    files = ("tensorflow/__init__.py", "tensorflow/include/a.h", "nvidia/nvcc/bin/ptxas", "nvidia/nvcc/include/b.h")
    for name in (*files, "tensorflow_cpu-2.1.dist-info/RECORD"):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755 if path.name == "ptxas" else 0o644)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    return tmp_path / "site"


def test_a_copy_has_what_a_program_reads_and_comes_first(site, tmp_path):
    os.utime(site / "tensorflow/__init__.py", (10, 10))
    load_from_node(str(tmp_path / "disk"))
    near, copy = sys.path[:2], Path(sys.path[0])
    assert near[1] == str(site) and copy.is_relative_to(tmp_path / "disk")
    made = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert made == {"tensorflow/__init__.py", "nvidia/nvcc/bin/ptxas"}
    assert os.access(copy / "nvidia/nvcc/bin/ptxas", os.X_OK)
    assert (copy / "tensorflow/__init__.py").stat().st_mtime == 10, "compiled files are of the time of their source"


def test_what_cannot_be_loaded_from_the_copy_is_loaded_where_it_is(site, tmp_path, caplog):
    (site / "tensorflow/__init__.py").write_text("raise ImportError('failed to map segment')")
    path = list(sys.path)
    load_from_node(str(tmp_path / "disk"))
    assert sys.path == path and list((tmp_path / "disk").rglob("ptxas")) == []
    assert "tensorflow is not copied (it cannot be loaded from " in caplog.text
    assert "ImportError: failed to map segment)" in caplog.text


def test_who_waited_for_another_process_in_vain_does_not_try_again(site, tmp_path, monkeypatch, caplog):
    flock = node_copy.fcntl.flock

    def busy(file, operation):
        if operation & node_copy.fcntl.LOCK_NB:
            raise BlockingIOError
        flock(file, operation)

    monkeypatch.setattr(node_copy.fcntl, "flock", busy)
    path = list(sys.path)
    load_from_node(str(tmp_path / "disk"))
    assert sys.path == path and not caplog.text and list((tmp_path / "disk").rglob("ptxas")) == []


def test_what_is_loaded_already_or_has_no_room_or_has_plugins_is_not_copied(site, tmp_path, monkeypatch, caplog):
    path = list(sys.path)
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    load_from_node(str(tmp_path / "loaded"))
    monkeypatch.delitem(sys.modules, "tensorflow")
    load_from_node("$NOT_SET_ON_THIS_NODE")
    assert not caplog.text and not (tmp_path / "loaded").exists()
    monkeypatch.setattr(node_copy, "MIN_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    load_from_node(str(tmp_path / "full"))
    assert "tensorflow is not copied" in caplog.text and "MiB free" in caplog.text
    (site / "tensorflow-plugins").mkdir()
    load_from_node(str(tmp_path / "plugins"))
    assert f"{site}/tensorflow-plugins would not be found" in caplog.text
    assert sys.path == path


def test_another_version_or_installation_is_another_copy(site):
    first = near_tensorflow._version(site)
    (site / "numpy-2.1.dist-info").mkdir()
    assert near_tensorflow._version(site) == first
    (site / "tensorflow_cpu-2.1.dist-info").rename(site / "tensorflow_cpu-2.2.dist-info")
    second = near_tensorflow._version(site)
    os.utime(site / "tensorflow_cpu-2.2.dist-info", (10, 10))
    assert len({first, second, near_tensorflow._version(site)}) == 3
