"""A Slurm cluster of three nodes, and a run small enough for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ..small_run import ROOT, SMALL_RUN, Workflow
from .mini_slurm import MiniSlurm, unavailable
from .profiles import site_profile

MADE_AFTER_RECORDS = ["model", "segmentation", "agglomeration"]


class ClusterWorkflow(Workflow):
    """Snakemake on the login node of a cluster."""

    snakefile = ROOT / "Snakefile"

    def __init__(self, folder: Path, config: dict, cluster: MiniSlurm, profile: str = "slurm") -> None:
        super().__init__(folder, config)
        self.cluster = cluster
        self.profile = profile

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of Snakemake with a profile for these small nodes."""
        snakemake = [sys.executable, "-m", "tests.cluster.impatient", "--snakefile", str(self.snakefile)]
        places = ["--directory", str(self.folder), "--profile", str(site_profile(self.folder, self.profile))]
        return self.cluster.login(*snakemake, *arguments, *places, "--configfile", str(self.folder / "run.yaml"))

    def environment(self) -> dict[str, str]:
        """Return the environment of a user of the cluster."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        quick = {"FFN_QUEUE_SECONDS": "1", "FFN_LOST_SECONDS": "5", "TF_CPP_MIN_LOG_LEVEL": "3"}
        return {**self.cluster.environment(), **quick, "PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniSlurm]:
    """Three nodes for all tests; every test leaves them idle."""
    if reason := unavailable():
        pytest.skip(reason)
    request.getfixturevalue("needs_mpi")  # what `srun --mpi=pmix` joins
    with MiniSlurm(tmp_path_factory.mktemp("mini-slurm"), num_nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def undisturbed(cluster: MiniSlurm, finished: Workflow, tmp_path_factory: pytest.TempPathFactory) -> ClusterWorkflow:
    """The small run up to `fill` with the profile `slurm`, from records on; tests read it and must not change it."""
    folder = tmp_path_factory.mktemp("slurm") / "run"
    workflow = repeated(finished, ClusterWorkflow(folder, SMALL_RUN, cluster), MADE_AFTER_RECORDS)
    workflow.output = workflow.succeed("fill_all")
    return workflow


def repeated(finished: Workflow, workflow: ClusterWorkflow, without: Iterable[str]) -> ClusterWorkflow:
    """Copy a finished run without these of its folders to that of a workflow."""
    others = shutil.ignore_patterns("run.yaml", "profiles", "slurm_logs")
    shutil.copytree(finished.folder, workflow.folder, ignore=others, dirs_exist_ok=True)
    for name in without:
        shutil.rmtree(workflow.results / name)
    return workflow


@pytest.fixture
def idle(cluster: MiniSlurm) -> Iterator[MiniSlurm]:
    """The cluster, for a test that breaks parts of it: whole again and without a process of the test afterwards."""
    yield cluster
    for name in [name for name, node in cluster.nodes.items() if not node.is_up]:
        cluster.revive_node(name)
    cluster.run("scancel", "--full", "--signal=KILL", *(number for number, _, _ in cluster.jobs()), "--user=root")
    cluster.wait_for_nodes()
