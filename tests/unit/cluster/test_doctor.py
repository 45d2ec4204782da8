"""The course of a check, with a scheduler that does what the test says."""

import json
import subprocess

import pytest

from ffn.cluster import doctor
from ffn.cluster.doctor import Check, examine
from ffn.cluster.site import read_site


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


def test_kernels_that_were_not_built_are_named_where_they_are_used(tmp_path, monkeypatch):
    for module in (doctor.kernels, doctor.inference):
        monkeypatch.setattr(module, "library_path", lambda: tmp_path / "gone.so")
    for gpus, verdict in (([], "warn"), (["A100"], "ok")):
        monkeypatch.setattr(doctor, "cards", lambda found=gpus: found)
        machine = doctor._machine()
        assert machine.verdict == verdict and ("gone.so" in machine.text) == (not gpus)
