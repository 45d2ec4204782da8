"""A probe of this machine, and its answer among other output."""

import json
import os
import subprocess
import sys

import pytest

from ffn.cluster import probe
from ffn.cluster.probe import MARKER, answers, describe_node, lines


@pytest.fixture
def shared(tmp_path):
    (tmp_path / MARKER).touch()
    return tmp_path


def test_a_long_answer_survives_other_output_between_its_lines():
    long = {"packages": {f"package-{number}": str(number**9) for number in range(300)}}
    pieces = lines(long)
    assert len(pieces) > 1 and max(map(len, pieces)) < 1000
    mixed = [f"0: {line}" for pair in zip(reversed(pieces), reversed(lines(long)), strict=True) for line in pair]
    assert answers("noise\n" + "\n".join(mixed)) == [long, long]
    assert answers("\n".join(mixed[1:])) == [long], "an incomplete answer is none"


def test_a_node_sees_the_files_of_the_other_processes(shared):
    (shared / "node-other").write_text("node-other")
    (shared / "node-late").write_text("")  # shown, but not yet written
    found = describe_node(shared, num_processes=2, seconds=60)
    assert found["sees_marker"] and found["seen"] == 2
    assert found["cores"] >= 1 and found["memory_mb"] > 0 and "numpy" in found["packages"]


def test_a_node_without_the_shared_folder_says_so(tmp_path):
    assert describe_node(tmp_path, 1, 0)["sees_marker"] is False


def test_waiting_for_other_processes_has_an_end(shared):
    assert describe_node(shared, num_processes=2, seconds=0)["seen"] == 1


def test_a_missing_horovod_is_an_answer(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    probe.main(["build"])
    (found,) = answers(capsys.readouterr().out)
    assert "horovod" in json.dumps(found["error"])


def test_tensorflow_sees_no_gpu_for_a_reason(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA A100, 550.54.15, 8.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "ffn.cluster.probe", "gpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    why = "CUDA_VISIBLE_DEVICES='-1' hides NVIDIA A100. Unset it"
    assert answers(done.stdout) == [{"seen": 0, "jax": 0, "has_card": True, "why": why}]


def test_a_missing_mpi_is_an_answer(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    probe.main(["library"])
    (found,) = answers(capsys.readouterr().out)
    assert "mpi4py" in found["error"]


def test_processes_join_by_mpi(needs_mpi4py):
    program = [sys.executable, "-m", "ffn.cluster.probe"]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", *program]
    clean = dict(os.environ)  # without what a library that joined here has put into the environment of this process
    told = subprocess.run([*command, "mpi"], env=clean, capture_output=True, text=True, check=True).stdout
    assert sorted((found["rank"], found["size"], *found["ranks"]) for found in answers(told)) == [
        (0, 2, 0, 1),
        (1, 2, 0, 1),
    ]
    told = subprocess.run([*command, "library"], env=clean, capture_output=True, text=True, check=True).stdout
    assert all(found["version"] and found["mpi"] for found in answers(told))
