"""Training on two nodes meets every kind of death: it ends soon, starts again, and ends with the same bytes."""

import re
import shutil
import signal
import time

import pytest

from ..workflow.test_kill import digest, wait_for
from .conftest import CLUSTER_RUN, STALL_SECONDS, ClusterWorkflow
from .mini_slurm.cluster import wait_until
from .mini_slurm.node import send

NOTICED_SECONDS = STALL_SECONDS + 45  # until the job has ended: Slurm's node timeout and KillWait come on top
MADE_BEFORE = ("volumes", "membrane", "partitions", "coordinates", "records")

times: list[str] = []


def ranks(cluster):
    """Processes of training by node, the Python that trains itself."""
    return {
        name: [p for p in processes if re.match(r"\S*python\S* \S*ffn train ", p.command)]
        for name, processes in cluster.processes().items()
    }


def rank_on(cluster, index):
    """Training's process on one of its nodes."""
    by_node = [found for found in ranks(cluster).values() if found]
    return by_node[index][:1]


def training_nodes(cluster):
    return [name for name, found in ranks(cluster).items() if found]


def kill_rank(cluster):
    send(rank_on(cluster, 1), signal.SIGKILL)


def freeze_rank(cluster):
    send(rank_on(cluster, 1), signal.SIGSTOP)


def kill_node(cluster):
    cluster.kill_node(training_nodes(cluster)[-1])


def cancel(cluster):
    cluster.run("scancel", *(number for number, _, _ in cluster.jobs()))


def reach_walltime(cluster):
    """Shorten the job's limit to what has passed; Slurm counts in minutes."""
    for number, _, _ in cluster.jobs():
        cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")


FAULTS = {
    "kill -9 of a rank": kill_rank,
    "SIGSTOP of a rank": freeze_rank,
    "a node dies": kill_node,
    "scancel": cancel,
    "walltime": reach_walltime,
}


@pytest.fixture
def workflow(undisturbed, idle, tmp_path):
    """A run in which everything up to the records is there."""
    workflow = ClusterWorkflow(tmp_path / "disturbed", CLUSTER_RUN, idle, "slurm-generic")
    for name in MADE_BEFORE:
        shutil.copytree(undisturbed.results / name, workflow.results / name)
    shutil.copytree(undisturbed.folder / ".snakemake/metadata", workflow.folder / ".snakemake/metadata")
    return workflow


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [*list(FAULTS)[:3], *(pytest.param(name, marks=pytest.mark.long) for name in list(FAULTS)[3:])]
)
def test_training_survives(fault, workflow, undisturbed, idle, capsys):
    process = workflow.start("train")
    wait_for(lambda: list((workflow.results / "model/checkpoints").glob("step-*")), process)
    struck = {p.pid for found in ranks(idle).values() for p in found}
    allowed = NOTICED_SECONDS + (60 if fault == "walltime" else 0)
    FAULTS[fault](idle)

    ended = wait_until(lambda: not struck & pids(idle), allowed, f"{fault}: ranks still there: {ranks(idle)}")
    start = time.monotonic()
    assert process.wait(timeout=240) == 0
    times.append(f"| {fault} | {ended:.0f} | {ended + time.monotonic() - start:.0f} |")

    assert "resum" in (workflow.results / "logs/train.log").read_text().lower()
    assert digest(workflow.results / "model/weights.h5") == digest(undisturbed.results / "model/weights.h5")
    wait_until(lambda: idle.jobs() == [], 20, f"{idle.jobs()} left in the queue")
    assert not any(idle.processes().values())
    with capsys.disabled():
        print("\n| fault | job ended, s | trained to the end, s |\n|---|---|---|", *times, sep="\n")


def pids(cluster) -> set[int]:
    """All processes of training."""
    return {p.pid for found in ranks(cluster).values() for p in found}
