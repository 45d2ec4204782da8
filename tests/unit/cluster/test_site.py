"""What `ffn doctor` reads from a profile, and what it submits."""

import json
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from ffn.cluster import doctor
from ffn.cluster.doctor import Check, examine
from ffn.cluster.findings import judge_nodes
from ffn.cluster.site import ROOT, read_site
from ffn.errors import ClusterError, FfnError
from ffn.workflow.rank_layout import Layout


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
    assert " -n 2 " in line or "select=2:ncpus=32:mpiprocs=4:ngpus=4:system=polaris" in line


def test_the_check_job_has_what_the_plugin_is_told(tmp_path):
    values = {
        "executor": "slurm",
        "default-resources": ["slurm_account='12-3'", "slurm_partition=gpu", "constraint='cpu'"],
        "slurm-qos": "regular",
        "set-resources": {"train": {"launcher": "srun", "ranks_per_node": 4, "slurm_extra": "--gpus-per-node=4"}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    words = read_site(str(tmp_path), 3).submit_command("a.sh")
    assert {"--nodes=3", "--ntasks=12", "--partition=gpu", "--account=12-3", "--gpus-per-node=4"} <= set(words)
    assert {"--constraint=cpu", "--qos=regular"} <= set(words)
    assert "--mem=12000" in words, "four processes that import TensorFlow"


def test_ranks_lie_evenly_on_the_nodes():
    """Slurm would put five of six tasks on the first node."""
    site = read_site("slurm-generic", 2)
    six = replace(site, layout=Layout(6, 4, 32, site.layout.launcher))
    assert {"--nodes=2", "--ntasks=6", "--ntasks-per-node=3"} <= set(six.submit_command("a.sh"))


@pytest.mark.parametrize(("hosts", "verdict"), [("aabb", "ok"), ("aaab", "FAIL"), ("aaaa", "FAIL")])
def test_ranks_that_lie_unevenly_are_noticed(hosts, verdict):
    probe = {"sees_marker": True, "python": "3", "packages": {}, "cores": 8, "memory_mb": 9, "scratch": "/t"}
    probes = [{"host": host, "scratch_mb": 1, **probe} for host in hosts]
    found = {finding.name: finding for finding in judge_nodes(probes, Layout(4, 2, 32), 9)}
    assert found["processes"].verdict == verdict
    assert found["cores"].text.startswith("each process may use 8 on a, expected 16")


def test_the_check_job_has_the_gpus_of_a_training(tmp_path):
    shutil.copytree(ROOT / "profiles/slurm-generic", tmp_path / "site")
    place = tmp_path / "site/config.yaml"
    assert not any("gpus" in word for word in read_site(str(place.parent), 2).submit_command("a.sh"))
    place.write_text(place.read_text().replace("# gpu: 4", "gpu: 4").replace("ranks_per_node: 1", "ranks_per_node: 2"))
    assert "--gpus-per-node=2" in read_site(str(place.parent), 2).submit_command("a.sh")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("executor: [slurm", "config.yaml: is not YAML"),
        ("- slurm", "config.yaml: is not a mapping"),
        ("executor: slurm\nset-resources: {train: {launcher: srun, ranks_per_node: four}}", "ranks_per_node: 'four'"),
    ],
)
def test_a_profile_with_a_mistake(text, message, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(FfnError, match=message):
        read_site(str(tmp_path), 2)


def test_a_profile_that_is_not_there():
    with pytest.raises(ClusterError, match="no nowhere/config.yaml, expected the folder of a profile or one of local"):
        read_site("nowhere", 2)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({}, "cluster-generic-submit-cmd: found '', expected 'python -m ffn.cluster.batch submit SCHEDULER'"),
        ({"cluster-generic-submit-cmd": "qsub"}, "cluster-generic-submit-cmd: found 'qsub', expected"),
        (
            {"cluster-generic-submit-cmd": "python -m ffn.cluster.batch submit lsf"},
            "scheduler: found 'lsf', expected one of cobalt, pbs, slurm",
        ),
    ],
)
def test_a_profile_that_names_no_known_scheduler(command, message, tmp_path):
    values = {"executor": "cluster-generic", "set-resources": {"train": {"launcher": "srun"}}, **command}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ClusterError, match=message):
        read_site(str(tmp_path), 2)


@pytest.fixture
def silent_scheduler(tmp_path, monkeypatch):
    """Slurm's commands, which do not reach their server, on a node whose Horovod works."""
    for name in ("sbatch", "squeue", "scancel", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho no controller >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_horovod", lambda site, check: doctor.Finding("horovod", "ok", ""))


def test_a_scheduler_that_does_not_answer(silent_scheduler, tmp_path):
    findings = examine(read_site("slurm", 2), Check(tmp_path / "runs", submit=True))
    assert [finding.name for finding in findings if finding.verdict == "FAIL"] == ["scheduler"]
    assert findings[0].text.startswith("squeue got no answer")


def test_only_folders_that_the_check_has_made_are_removed(silent_scheduler, tmp_path):
    (tmp_path / "there").mkdir()
    examine(read_site("slurm", 2), Check(tmp_path / "there/new/runs"))
    assert (tmp_path / "there").is_dir() and not (tmp_path / "there/new").exists()
    examine(read_site("slurm", 2), Check(tmp_path / "there", result=tmp_path / "there/new/found.json"))
    examine(read_site("slurm", 2), Check(tmp_path / "there/new/runs"))
    assert [path.name for path in (tmp_path / "there/new").iterdir()] == ["found.json"]


def test_a_check_that_is_interrupted_takes_its_job_along(silent_scheduler, tmp_path, monkeypatch):
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


def test_a_check_job_that_ends_early_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sys, "executable", "/bin/false")
    doctor._write_script(tmp_path / "job.sh", tmp_path / "found it.json", read_site("slurm", 2), Check(tmp_path))
    subprocess.run([tmp_path / "job.sh"], check=True)
    assert json.loads((tmp_path / "found it.json").read_text())[0]["verdict"] == "FAIL"
    assert {path.name for path in tmp_path.iterdir()} == {"job.sh", "found it.json"}
