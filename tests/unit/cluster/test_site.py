"""What is read from a profile, and the check job that follows from it."""

import shutil
from dataclasses import replace

import pytest
import yaml

from ffn.cluster import batch
from ffn.cluster.site import ROOT, check_commands, check_none_left, read_site
from ffn.errors import ClusterError, FfnError
from ffn.workflow.rank_layout import Layout

from .conftest import done


@pytest.fixture(autouse=True)
def account(monkeypatch):
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
def test_a_profile_is_found_by_its_name_from_any_folder(profile, commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheduler = read_site(profile, 2).scheduler
    assert (list(scheduler.commands) if scheduler else []) == commands


@pytest.mark.parametrize(("profile", "queue"), [("theta", "debug-cache-quad"), ("polaris", "preemptable")])
def test_the_check_job_has_account_and_queue(profile, queue):
    line = " ".join(read_site(profile, 2).submit_command("a.sh", "log"))
    assert f"-q {queue} -A brains" in line
    assert " -n 2 " in line or "select=2:ncpus=32:mpiprocs=4:ngpus=4:system=polaris" in line


def test_the_check_job_has_the_options_of_the_plugin(tmp_path):
    values = {
        "executor": "slurm",
        "default-resources": ["slurm_account='12-3'", "slurm_partition=gpu", "constraint='cpu'"],
        "slurm-qos": "regular",
        "set-resources": {"train": {"launcher": "srun", "ranks_per_node": 4, "slurm_extra": "--gpus-per-node=4"}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    words = read_site(str(tmp_path), 3).submit_command("a.sh", "log")
    assert {"--nodes=3", "--ntasks=12", "--partition=gpu", "--account=12-3", "--gpus-per-node=4"} <= set(words)
    assert {"--constraint=cpu", "--qos=regular"} <= set(words)
    assert "--mem=8000" in words, "four processes that import TensorFlow"


def test_ranks_are_spread_evenly_and_bound_to_the_gpus():
    """By itself, Slurm would place five of six tasks on the first node."""
    site = read_site("slurm-generic", 2)
    six = replace(site, layout=Layout(6, 4, 32, site.layout.launcher))
    assert {"--nodes=2", "--ntasks=6", "--ntasks-per-node=3"} <= set(six.submit_command("a.sh", "log"))
    words = read_site("polaris", 2).layout.words
    assert words[:8] == "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind".split()
    assert "CUDA_VISIBLE_DEVICES=3,2,1,0" in words


def test_the_check_job_has_the_gpus_of_training(tmp_path):
    shutil.copytree(ROOT / "profiles/slurm-generic", tmp_path / "site")
    place = tmp_path / "site/config.yaml"
    assert not any("gpus" in word for word in read_site(str(place.parent), 2).submit_command("a.sh", "log"))
    place.write_text(place.read_text().replace("# gpu: 4", "gpu: 4").replace("ranks_per_node: 1", "ranks_per_node: 2"))
    assert "--gpus-per-node=2" in read_site(str(place.parent), 2).submit_command("a.sh", "log")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("executor: [slurm", "config.yaml: "),
        ("- slurm", "config.yaml: "),
    ],
)
def test_a_mistake_in_a_profile_is_named(text, message, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(FfnError, match=message):
        read_site(str(tmp_path), 2)


def test_a_missing_profile_or_scheduler_is_named(monkeypatch, tmp_path):
    with pytest.raises(ClusterError, match="no nowhere/config.yaml.* local"):
        read_site("nowhere", 2)
    (tmp_path / "qsub").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="profile: .*qstat.*qdel"):
        check_commands("cluster-generic", SUBMIT)
    check_commands("local", None)


SUBMIT = "python -m ffn.cluster.batch submit cobalt"


def test_no_run_starts_alongside_the_jobs_of_a_killed_snakemake(submit, record, monkeypatch):
    for job_id in ("7", "8", "9"):
        assert submit(done(f"{job_id}\n"))[0] == 0
    record("9", "exit", "0")
    monkeypatch.setattr(batch, "run_command", lambda command: done("7 running\n9 exiting\n"))
    with pytest.raises(ClusterError, match="^results/a: .*qdel 7$"):
        check_none_left(SUBMIT, "results/a")
    check_none_left(SUBMIT, "results/another")
    monkeypatch.setattr(batch, "run_command", lambda command: done(stderr="cannot connect", code=1))
    with pytest.raises(ClusterError, match="qdel 7$"):
        check_none_left(SUBMIT, "results/a")
