"""The processes of a node load TensorFlow from one copy on its disk."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ffn.io import node_copy
from ffn.training import near_tensorflow
from ffn.training.near_tensorflow import load_from_node

SITE = Path(importlib.util.find_spec("tensorflow").origin).parents[1]
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
def test_tensorflow_is_copied_once_and_read_from_the_copy_by_all_processes(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(SITE)]
    ranks = [subprocess.Popen(command, stdout=-1, stderr=-1, text=True) for _ in range(2)]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told
    (copy,) = tmp_path.glob("ffn-copies-*/*/*/copy")
    assert [out for out, _ in told] == [f"{copy} 3\n0 0\n"] * 2, "nothing of TensorFlow is read where it is shared"
    assert sorted(message.count("staged ") for _, message in told) == [0, 1]
    assert not (copy / "tensorflow/include").exists()


def test_what_is_loaded_already_and_what_has_no_room_is_not_copied(tmp_path, monkeypatch, caplog):
    path = list(sys.path)
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    load_from_node(str(tmp_path / "loaded"))
    monkeypatch.delitem(sys.modules, "tensorflow")
    load_from_node("$NOT_SET_ON_THIS_NODE")
    monkeypatch.setattr(node_copy, "MIN_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    load_from_node(str(tmp_path / "full"))
    assert sys.path == path and not (tmp_path / "loaded").exists()
    assert "tensorflow is not copied" in caplog.text and "MiB free" in caplog.text


def test_another_version_or_installation_is_another_copy(tmp_path):
    (tmp_path / "tensorflow_cpu-2.1.dist-info").mkdir()
    first = near_tensorflow._version(tmp_path)
    (tmp_path / "numpy-2.1.dist-info").mkdir()
    assert near_tensorflow._version(tmp_path) == first
    (tmp_path / "tensorflow_cpu-2.1.dist-info").rename(tmp_path / "tensorflow_cpu-2.2.dist-info")
    second = near_tensorflow._version(tmp_path)
    (tmp_path / "tensorflow_cpu-2.2.dist-info/RECORD").touch()
    assert len({first, second, near_tensorflow._version(tmp_path)}) == 3
