"""What is read from a profile, and the check job that follows from it."""

import shutil

import pytest

from ffn.cluster import batch
from ffn.cluster.batch import check_commands, check_none_left
from ffn.cluster.doctor import ROOT, read_site
from ffn.errors import ClusterError, FfnError

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


def test_ranks_are_bound_to_the_gpus_of_training(tmp_path):
    polaris = read_site("polaris", 2)
    assert polaris.num_gpus == 4
    words = polaris.layout.command.split()
    assert words[:8] == "mpiexec -n 8 --ppn 4 --depth 8 --cpu-bind".split()
    assert "CUDA_VISIBLE_DEVICES=3,2,1,0" in words
    shutil.copytree(ROOT / "profiles/slurm-generic", tmp_path / "site")
    place = tmp_path / "site/config.yaml"
    assert read_site(str(place.parent), 2).num_gpus == 0
    place.write_text(place.read_text().replace("# gpu: 4", "gpu: 4"))
    assert read_site(str(place.parent), 2).num_gpus == 4


@pytest.mark.parametrize(("text", "message"), [("executor: [slurm", "config.yaml: "), ("- slurm", "config.yaml: ")])
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
        assert submit(done(f"{job_id}\n")) == 0
    record("9", "exit", "0")
    monkeypatch.setattr(batch, "run_command", lambda command: done("7 running\n9 exiting\n"))
    with pytest.raises(ClusterError, match="^results/a: .*qdel 7$"):
        check_none_left(SUBMIT, "results/a")
    check_none_left(SUBMIT, "results/another")
    assert sorted(path.name for path in batch.STATE.glob("*.submitted")) == ["7.submitted", "9.submitted"]
    monkeypatch.setattr(batch, "run_command", lambda command: done(stderr="cannot connect", code=1))
    with pytest.raises(ClusterError, match="qdel 7$"):
        check_none_left(SUBMIT, "results/a")
