"""The course of a check, with a scheduler that does what the test says, and the verdicts on what the probes found."""

import json
import subprocess
import sys

import pytest

from ffn.cluster import doctor
from ffn.cluster.doctor import answers, examine, join, judge_job, judge_nodes, node, read_site
from ffn.workflow.rank_layout import Layout


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Return a function that puts Slurm's commands on PATH: what sbatch, squeue and scancel do."""

    def commands(submit, listed="true", cancel="true"):
        for name, does in {"sbatch": submit, "squeue": listed, "scancel": cancel, "srun": "true"}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    return commands


def test_a_silent_or_missing_scheduler_is_a_failure(slurm, tmp_path, monkeypatch):
    for listed, scheduler in (("echo no controller >&2; exit 1", "FAIL"), ("true", "ok")):
        slurm("true", listed=listed)
        verdicts = {name: verdict for name, verdict, _ in examine(read_site("slurm", 2), tmp_path, "mpi")}
        assert verdicts == {"scheduler": scheduler, "launcher": "ok", "nodes": "skip"}
    monkeypatch.setenv("PATH", "/nowhere")
    found = {name: (verdict, text) for name, verdict, text in examine(read_site("slurm", 2), tmp_path, "mpi")}
    assert found["scheduler"][0] == found["launcher"][0] == "FAIL" and "srun" in found["launcher"][1]


def test_kernels_that_were_not_built_are_named_where_they_are_used(tmp_path, monkeypatch):
    for module in (doctor.kernels, doctor.inference):
        monkeypatch.setattr(module, "library_path", lambda: tmp_path / "gone.so")
    for gpus, verdict in (([], "warn"), (["A100"], "ok")):
        monkeypatch.setattr(doctor, "cards", lambda found=gpus: found)
        machine = doctor._machine()
        assert machine.verdict == verdict and ("gone.so" in machine.text) == (not gpus)


def judged(hosts="aabb", num_gpus=0, **changes):
    """Judge a good answer for each host; `changes` apply to the last one."""
    good = {"cores": 16, "tensorflow": 1, "jax": 0, "why": ""}
    answers = [{"host": host, **good} for host in hosts]
    answers[-1] |= changes
    return {finding.name: finding for finding in judge_nodes(answers, Layout(4, 2, 32), num_gpus)}


@pytest.mark.parametrize(("hosts", "verdict"), [("aabb", "ok"), ("aaab", "FAIL"), ("aaaa", "FAIL"), ("aab", "FAIL")])
def test_unevenly_spread_or_missing_ranks_fail(hosts, verdict):
    found = judged(hosts)
    assert found.pop("processes").verdict == verdict
    assert {finding.verdict for finding in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "name", "verdict"),
    [
        ({"refused": "Read-only file system"}, "shared folder", "FAIL"),
        ({"cores": 8}, "cores", "warn"),
        ({"num_gpus": 1, "tensorflow": 0, "why": "no driver"}, "gpu", "warn"),
    ],
)
def test_a_node_with_a_fault_is_named(changes, name, verdict):
    found = judged(**changes)
    assert found[name].verdict == verdict and found[name].text.startswith("b: ")
    assert changes.get("refused", "") in found[name].text and changes.get("why", "") in found[name].text


def test_gpus_count_by_any_library_and_where_the_profile_asks_for_them():
    assert judged(num_gpus=1, tensorflow=0, jax=1)["gpu"].verdict == "ok"
    assert "gpu" not in judged(tensorflow=0)


def test_no_answer_and_a_library_that_cannot_be_imported_are_failures():
    assert [finding.verdict for finding in judge_nodes([], Layout(4, 2, 32))] == ["FAIL"]
    found = judge_job([{"error": "no libmpi.so"}, {"error": "no libmpi.so"}], 2)
    assert found.verdict == "FAIL" and found.text.startswith("no libmpi.so")


@pytest.mark.parametrize(("ranks", "verdict"), [([1, 0], "ok"), ([0, 0], "FAIL"), ([0], "FAIL"), ([], "FAIL")])
def test_all_processes_are_one_job(ranks, verdict):
    found = judge_job([{"rank": rank, "size": 2, "library": "Horovod with gloo"} for rank in ranks], 2)
    assert found.verdict == verdict and ("gloo" in found.text) == bool(ranks)


def test_answers_are_found_in_the_output_of_several_processes():
    assert answers('noise\n0: FFN-PROBE {"a": 1}FFN-PROBE {"a": {"b": 2}}\nFFN-PROBE, a word') == [
        {"a": 1},
        {"a": {"b": 2}},
    ]


@pytest.mark.slow  # loads TensorFlow
@pytest.mark.usefixtures("needs_horovod")
def test_a_process_tells_whether_the_folder_is_visible_and_joins_by_horovod(tmp_path):
    probe = [sys.executable, "-m", "ffn.cluster.doctor", "horovod", str(tmp_path)]
    found, joined = answers(subprocess.run(probe, capture_output=True, text=True, check=True).stdout)
    assert (joined["rank"], joined["size"]) == (0, 1) and joined["library"].startswith("Horovod")
    assert joined["exact_ms"] > 0 and joined["allreduce_ms"] > 0
    assert found["cores"] >= 1 and "refused" not in found and len(json.dumps(found)) < 900
    assert len(list(tmp_path.iterdir())) == 1
    assert "No such file" in node(str(tmp_path / "of another node"))["refused"]


@pytest.mark.slow  # loads TensorFlow
@pytest.mark.parametrize(("name", "module"), [("horovod", "horovod.tensorflow"), ("mpi", "mpi4py")])
def test_a_missing_library_is_an_answer(monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    assert name in join(name)["error"]
