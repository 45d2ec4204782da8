"""A training job, and the answers of a scheduler's commands."""

import subprocess

import pytest

from ffn.machine.schedulers import BatchJob

SITE = {"mem_mb": 2000, "cores_per_node": 32, "account": "brains", "queue": "prod", "pbs_filesystems": "home:eagle"}


@pytest.fixture
def training():
    """Return three nodes of four ranks, with a GPU for each rank."""
    return BatchJob("ffn-train", nodes=3, threads=8, gpus=4, minutes=90, is_mpi=True, site={**SITE, "tasks": 12})


@pytest.fixture
def done():
    """Return a function that makes the result of a command."""

    def make(stdout="", stderr="", code=0):
        return subprocess.CompletedProcess(["qstat"], code, stdout, stderr)

    return make
