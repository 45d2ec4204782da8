"""The course of a check, with a scheduler that does what the test says."""

import json
import subprocess

import pytest

from ffn.cluster import doctor
from ffn.cluster.doctor import Check, examine
from ffn.cluster.site import read_site
from ffn.machine.description import Machine


@pytest.fixture
def silent_scheduler(tmp_path, monkeypatch):
    """Put Slurm's commands on PATH, without a server, on a machine whose Horovod works."""
    for name in ("sbatch", "squeue", "scancel", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_collective", lambda site, check: doctor.Finding("horovod", "ok", ""))


def test_a_silent_scheduler_fails(silent_scheduler, tmp_path):
    findings = examine(read_site("slurm", 2), Check(tmp_path / "runs", submit=True))
    assert [finding.name for finding in findings if finding.verdict == "FAIL"] == ["scheduler"]
    assert findings[0].text.startswith("squeue got no answer")


def test_only_folders_that_the_check_made_are_removed(silent_scheduler, tmp_path):
    (tmp_path / "there").mkdir()
    examine(read_site("slurm", 2), Check(tmp_path / "there/new/runs"))
    assert (tmp_path / "there").is_dir() and not (tmp_path / "there/new").exists()
    examine(read_site("slurm", 2), Check(tmp_path / "there", result=tmp_path / "there/new/found.json"))
    examine(read_site("slurm", 2), Check(tmp_path / "there/new/runs"))
    assert [path.name for path in (tmp_path / "there/new").iterdir()] == ["found.json"]


def test_an_interrupted_check_cancels_its_job(silent_scheduler, tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 4711\n")
    (tmp_path / "scancel").write_text(f"#!/bin/sh\necho $* > {tmp_path}/cancelled\n")

    def interrupted(path, timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "_appears", interrupted)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(KeyboardInterrupt):
        examine(read_site("slurm", 2), Check(tmp_path / "runs", submit=True))
    assert (tmp_path / "cancelled").read_text() == "4711\n"


def test_a_check_job_that_ends_early_leaves_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    doctor._write_script(tmp_path / "job.sh", tmp_path / "found it.json", read_site("slurm", 2), Check(tmp_path))
    subprocess.run([tmp_path / "job.sh"], check=True)
    assert json.loads((tmp_path / "found it.json").read_text())[0]["verdict"] == "FAIL"
    assert {path.name for path in tmp_path.iterdir()} == {"job.sh", "found it.json"}


def test_the_machine_is_described_with_what_slows_it(monkeypatch):
    monkeypatch.setattr(doctor, "this_machine", lambda: Machine(2, "Xeon", "AVX2", memory_mb=8000))
    found = {name: (verdict, text) for name, verdict, text in doctor._machine()}
    assert found["machine"] == ("ok", "2 cores (Xeon, AVX2), no GPU, 8 GB of memory")
    assert found["slow"][0] == "warn" and found["slow"][1].startswith("the CPU has neither AMX nor AVX-512")
    assert found.keys() == {"machine", "slow"}


def test_kernels_that_were_not_built_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "this_machine", lambda: Machine(2, "Xeon", "AMX"))
    for module in (doctor.kernels, doctor.inference):
        monkeypatch.setattr(module, "library_path", lambda: tmp_path / "gone.so")
    reason = f"does without our kernels, because {tmp_path / 'gone.so'} is missing (make setup builds it)"
    slow = [text for name, _, text in doctor._machine() if name == "slow"]
    assert slow == [f"training {reason}", f"flood filling {reason}"]
