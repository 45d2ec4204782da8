"""A scheduler is found by the name of its module."""

import pytest

from ffn.errors import ClusterError
from ffn.machine.schedulers import current_job_id, find_scheduler, scheduler_names


@pytest.fixture
def outside(monkeypatch):
    for name in scheduler_names():
        monkeypatch.delenv(find_scheduler(name).JOB_ID, raising=False)


def test_a_module_is_all_that_a_scheduler_needs(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text('JOB_ID = "TOY_JOB"\n')
    monkeypatch.setattr("ffn.machine.schedulers.__path__", [str(tmp_path)])
    assert scheduler_names() == ["toy"]
    monkeypatch.setenv("TOY_JOB", "7")
    assert current_job_id() == "7"


def test_an_unknown_scheduler_is_refused():
    with pytest.raises(ClusterError, match="scheduler: found 'lfs', expected one of cobalt, .*slurm"):
        find_scheduler("lfs")


@pytest.mark.parametrize("variable", ["COBALT_JOBID", "PBS_JOBID", "SLURM_JOB_ID"])
def test_a_process_knows_the_job_it_runs_in(outside, monkeypatch, variable):
    assert current_job_id() is None
    monkeypatch.setenv(variable, "4711")
    assert current_job_id() == "4711"
