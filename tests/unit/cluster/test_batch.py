"""Submission, state and cancelling of jobs, without any scheduler."""

import os
import resource
import subprocess
import sys
import time

import pytest

from ffn.cluster import batch
from ffn.errors import ClusterError
from ffn.machine.schedulers import cobalt

from .conftest import done

CONNECTION_LOST = done(stderr="cannot connect", code=1)


@pytest.fixture
def ask(folder, monkeypatch, capsys):
    """Return a function that gives the status of a job and the queries to a scheduler that answers `listed`."""

    def status(job_id, listed):
        asked = []
        monkeypatch.setattr(batch, "run_command", lambda command: asked.append(command) or listed)
        assert batch.main(["status", "cobalt", job_id]) == 0
        return capsys.readouterr().out.strip(), asked

    return status


def test_a_job_inherits_nothing_of_the_job_that_snakemake_runs_in(monkeypatch):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    assert batch.run_command(["sh", "-c", "echo $SLURM_MEM_PER_CPU $SLURM_CONF"]).stdout == "/etc/other.conf\n"


@pytest.mark.parametrize(("code", "word"), [("0", "success"), ("1", "failed"), ("143", "failed")])
def test_a_recorded_exit_code_decides(record, ask, code, word):
    record("7", "submitted", age=60)
    record("7", "exit", code)
    assert ask("7", done(code=1)) == (word, [])


def test_one_query_serves_all_jobs_and_none_asks_again_for_finished_ones(record, ask):
    for job_id in ("7", "8", "9"):
        record(job_id, "submitted", age=60)
    record("9", "exit", "0")
    query = "qstat --header JobID:State 7 8".split()
    assert ask("7", done("7 running\n8 queued\n")) == ("running", [query])
    assert ask("8", done()) == ("running", [])
    record("7", "submitted", age=60)
    record("7", "exit", "0")
    assert ask("7", done())[0] == "success"
    assert not (batch.STATE / "7.submitted").exists()
    assert ask("7", done())[0] == "success", "a restarted Snakemake asks again"


def test_a_lost_job_fails_after_a_while(record, ask):
    record("7", "submitted", age=600)
    assert ask("7", done(code=1))[0] == "running"
    record("7", "gone", str(time.time() - batch.LOST_SECONDS - 1))
    assert ask("7", done(code=1))[0] == "failed"


def test_a_full_disk_leaves_no_empty_record_of_a_lost_job(record):
    record("7", "submitted", age=600)
    (batch.STATE / "queue.json").write_text("[]")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="ulimit"):
            batch._is_lost(cobalt, "7")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (batch.STATE / "7.gone").exists()


@pytest.mark.parametrize("listed", [done("7 running\n"), CONNECTION_LOST, done(stderr="timeout", code=127)])
def test_a_job_that_is_listed_again_is_not_lost_and_an_unreachable_scheduler_proves_nothing(record, ask, listed):
    record("7", "submitted", age=600)
    record("7", "gone", "0")
    assert ask("7", listed)[0] == "running"
    assert (batch.STATE / "7.gone").exists() == (listed.returncode != 0)


def test_status_never_fails(record, ask):
    (batch.STATE / "queue.json").write_text("{")
    record("7", "submitted", age=60)
    assert ask("7", done())[0] == "running"


def test_a_refused_job_is_an_error_that_says_what_the_scheduler_says(submit, capsys):
    refused = done(stderr="qsub: would exceed the limit of the queue\n", code=1)
    assert submit(refused) == 1
    assert "exceed the limit" in capsys.readouterr().err


def test_records_of_an_earlier_job_with_this_id_do_not_count(submit, record):
    record("7", "exit", "0", age=900)
    assert submit(done("7\n")) == 0
    assert not (batch.STATE / "7.exit").exists()


def test_submitting_writes_the_command_that_cancels(submit, folder):
    """Snakemake runs its cancel command without a shell, so it cannot name the scheduler."""
    place, tools = folder / "cancelled", folder / "bin"
    tools.mkdir()
    (tools / "qdel").write_text(f"#!/bin/sh\necho $* > {place}.tmp; mv {place}.tmp {place}\n")
    (tools / "qdel").chmod(0o755)
    assert submit(done("7\n")) == 0
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([".snakemake/cluster/cancel", "7", "8"], env={**os.environ, **variables}, check=True)
    while not place.exists():  # it runs detached
        time.sleep(0.05)
    assert place.read_text() == "7 8\n"


@pytest.mark.parametrize("command", ["", "qsub -q prod", "python -m ffn.cluster.batch submit lfs"])
def test_a_submit_command_names_a_known_scheduler(command):
    with pytest.raises(ClusterError, match="cluster-generic-submit-cmd: "):
        batch.scheduler_of(command)
