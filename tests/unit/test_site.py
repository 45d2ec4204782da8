"""What `ffn doctor` reads from a profile, and what it submits."""

import pytest
import yaml

from ffn.cluster import doctor
from ffn.cluster.doctor import Check, examine
from ffn.cluster.site import read_site
from ffn.errors import ClusterError


@pytest.fixture(autouse=True)
def project(monkeypatch):
    monkeypatch.setenv("FFN_ACCOUNT", "brains")
    monkeypatch.delenv("FFN_QUEUE", raising=False)


@pytest.mark.parametrize(
    ("profile", "commands"),
    [
        ("theta", ["qsub", "qstat", "qdel"]),
        ("polaris", ["qsub", "qstat", "qdel"]),
        ("slurm", ["sbatch", "squeue", "scancel"]),
        ("slurm-generic", ["sbatch", "squeue", "scancel"]),
        ("local", []),
    ],
)
def test_profiles_are_read_from_anywhere(profile, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_site(profile, 2).commands == commands


@pytest.mark.parametrize(("profile", "queue"), [("theta", "debug-cache-quad"), ("polaris", "preemptable")])
def test_the_check_job_has_the_account_and_queue_of_the_run(profile, queue):
    line = " ".join(read_site(profile, 2).submit_command("a.sh"))
    assert f"-q {queue} -A brains" in line
    assert " -n 2 " in line or "select=2:ncpus=32:system=polaris" in line


def test_the_check_job_has_what_the_plugin_is_told(tmp_path):
    values = {
        "executor": "slurm",
        "default-resources": ["slurm_account=lab", "slurm_partition=gpu"],
        "set-resources": {"train": {"launcher": "srun", "ranks_per_node": 4, "slurm_extra": "--gpus-per-node=4"}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    words = read_site(str(tmp_path), 3).submit_command("a.sh")
    assert {"--nodes=3", "--ntasks=12", "--partition=gpu", "--account=lab", "--gpus-per-node=4"} <= set(words)
    assert "--mem=12000" in words, "four processes that import TensorFlow"


def test_a_profile_that_is_not_there():
    with pytest.raises(ClusterError, match="no nowhere/config.yaml, expected the folder of a profile or one of local"):
        read_site("nowhere", 2)


def test_a_profile_without_its_scripts(tmp_path):
    train = {"launcher": "srun"}
    values = {"executor": "cluster-generic", "set-resources": {"train": train}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ClusterError, match="submit.py: is missing"):
        read_site(str(tmp_path), 2)
    (tmp_path / "submit.py").write_text("")
    with pytest.raises(ClusterError, match="submit.py: names no scheduler"):
        read_site(str(tmp_path), 2)


def test_a_scheduler_that_does_not_answer(tmp_path, monkeypatch):
    for name in ("sbatch", "squeue", "scancel", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_horovod", lambda site, check: doctor.Finding("horovod", "ok", ""))
    findings = examine(read_site("slurm", 2), Check(tmp_path / "runs", submit=True))
    assert [finding.name for finding in findings if finding.verdict == "FAIL"] == ["scheduler"]
    assert findings[0].text.startswith("squeue cannot ask it")
