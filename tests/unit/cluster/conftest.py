"""A folder in which jobs were submitted, and a scheduler's answers without a scheduler."""

import json
import os
import subprocess
import time

import pytest

from ffn.cluster import batch
from ffn.cluster.batch import STATE
from ffn.machine.schedulers import cobalt


def done(stdout="", stderr="", code=0):
    """Return the result of a scheduler's command."""
    return subprocess.CompletedProcess(["qstat"], code, stdout, stderr)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a folder for records of jobs."""
    monkeypatch.chdir(tmp_path)
    STATE.mkdir(parents=True)
    return tmp_path


@pytest.fixture
def record(folder):
    """Return a function that writes a record of a job, as of `age` seconds ago."""

    def write(job_id, kind, text="", age=0.0):
        path = STATE / f"{job_id}.{kind}"
        path.write_text(text)
        os.utime(path, (time.time() - age, time.time() - age))

    return write


@pytest.fixture
def job_script(folder):
    """Return a function that writes a job script as Snakemake does."""

    def write(command="true", **values):
        path = folder / "job.sh"
        path.write_text(f"#!/bin/sh\n# properties = {json.dumps(values)}\n{command}\n")
        return path

    return write


@pytest.fixture
def submit(job_script, monkeypatch):
    """Return a function that submits a job and gives the exit code; `answer` is that of the scheduler's command."""

    def run(answer):
        resources = {"runtime": 9, "mem_mb": 1}
        script = job_script(rule="train", output=["results/a/model.yaml"], resources=resources)
        monkeypatch.setattr(batch, "run_command", lambda command: answer)
        return batch.submit(cobalt, [str(script)])

    return run
