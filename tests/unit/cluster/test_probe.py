"""A probe of this machine, and its answer among other output."""

import json
import os
import subprocess
import sys

import pytest

from ffn.cluster import probe
from ffn.cluster.probe import MARKER, answers, node


@pytest.fixture
def shared(tmp_path):
    (tmp_path / MARKER).touch()
    return tmp_path


def test_answers_are_found_in_the_output_of_several_processes():
    assert answers('noise\n0: FFN-PROBE {"a": 1}FFN-PROBE {"a": {"b": 2}}\nFFN-PROBE, a word') == [
        {"a": 1},
        {"a": {"b": 2}},
    ]


def test_a_node_sees_the_files_of_the_other_processes(shared):
    (shared / "node-other").write_text("node-other")
    (shared / "node-late").write_text("")  # shown, but not yet written
    found = node(str(shared), "2", "60")
    assert found["sees_marker"] and found["seen"] == 2
    assert found["cores"] >= 1 and len(json.dumps(found)) < 900


def test_a_node_without_the_shared_folder_says_so(tmp_path):
    assert node(str(tmp_path), "1", "0")["sees_marker"] is False


def test_waiting_for_other_processes_has_an_end(shared):
    assert node(str(shared), "2", "0")["seen"] == 1


@pytest.mark.slow  # loads TensorFlow
@pytest.mark.parametrize(("name", "module"), [("horovod", "horovod.tensorflow"), ("mpi", "mpi4py")])
def test_a_missing_library_is_an_answer(monkeypatch, capfd, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    probe.main([name])
    (found,) = answers(capfd.readouterr().out)
    assert name in found["error"]


@pytest.mark.slow  # two processes load TensorFlow
def test_processes_join_by_mpi(needs_mpi4py):
    program = [sys.executable, "-m", "ffn.cluster.probe"]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *program]
    clean = dict(os.environ)  # without what a library that joined here has put into the environment of this process
    told = answers(subprocess.run([*command, "mpi"], env=clean, capture_output=True, text=True, check=True).stdout)
    assert sorted((found["rank"], found["size"]) for found in told) == [(0, 2), (1, 2)]
    assert all(found["exact_ms"] > 0 and found["allreduce_ms"] > 0 for found in told)
