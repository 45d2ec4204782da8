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
    """Shorten the job's limit to a minute, Slurm's unit; it looks every half minute."""
    for number, _, _ in cluster.jobs():
        cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")


FAULTS = {
    "kill -9 of a rank": kill_rank,
    "SIGSTOP of a rank": freeze_rank,
    "a node dies": kill_node,
    "scancel": cancel,
}
# Slurm counts the walltime in minutes and looks every half minute: so long must training take.
LONG_RUN = {**CLUSTER_RUN, "train": {**CLUSTER_RUN["train"], "max_steps": 6000, "checkpoint_steps": 500}}


def prepared(folder, config, undisturbed, cluster):
    """Return a run in which everything up to the records is there."""
    workflow = ClusterWorkflow(folder, config, cluster, "slurm-generic")
    for name in MADE_BEFORE:
        shutil.copytree(undisturbed.results / name, workflow.results / name)
    shutil.copytree(undisturbed.folder / ".snakemake/metadata", workflow.folder / ".snakemake/metadata")
    return workflow


def pids(cluster) -> set[int]:
    """All processes of training."""
    return {p.pid for found in ranks(cluster).values() for p in found}


def strike(name, fault, allowed, workflow, capsys):
    """Train until a checkpoint is there, do something to the job, and wait for the end of its next attempt."""
    cluster = workflow.cluster
    process = workflow.start("train")
    wait_for(lambda: list((workflow.results / "model/checkpoints").glob("step-*")), process)
    struck = pids(cluster)
    start = time.monotonic()
    fault(cluster)
    ended = wait_until(lambda: not struck & pids(cluster), allowed, f"{name}: ranks still there: {ranks(cluster)}")
    assert process.wait(timeout=240) == 0
    times.append(f"| {name} | {ended:.0f} | {time.monotonic() - start:.0f} |")
    with capsys.disabled():
        print("\n| fault | job ended, s | trained to the end, s |\n|---|---|---|", *times, sep="\n")
    wait_until(lambda: cluster.unfinished_jobs() == [], 20, f"{cluster.jobs()} left in the queue")
    wait_until(lambda: not any(cluster.processes().values()), 20, f"still running: {cluster.processes()}")


def resumed_from(workflow) -> int:
    """Step of the checkpoint from which the last attempt went on."""
    return int(re.search(r"resuming from \S+/step-(\d+)", (workflow.results / "logs/train.log").read_text()).group(1))


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*list(FAULTS)[:3], pytest.param("scancel", marks=pytest.mark.long)])
def test_training_survives(fault, undisturbed, idle, tmp_path, capsys):
    workflow = prepared(tmp_path / "disturbed", CLUSTER_RUN, undisturbed, idle)
    strike(fault, FAULTS[fault], NOTICED_SECONDS, workflow, capsys)
    assert resumed_from(workflow) >= CLUSTER_RUN["train"]["checkpoint_steps"]
    assert digest(workflow.results / "model/weights.h5") == digest(undisturbed.results / "model/weights.h5")


@pytest.mark.slow
@pytest.mark.long
def test_training_survives_its_walltime(undisturbed, idle, tmp_path, capsys):
    """Slurm sends SIGTERM and after its KillWait SIGKILL; in between training writes a checkpoint."""
    workflow = prepared(tmp_path / "disturbed", LONG_RUN, undisturbed, idle)
    strike("walltime", reach_walltime, NOTICED_SECONDS + 90, workflow, capsys)
    assert resumed_from(workflow) % LONG_RUN["train"]["checkpoint_steps"] != 0, "no checkpoint was written at the end"

    expected = prepared(tmp_path / "expected", LONG_RUN, undisturbed, idle)
    expected.succeed("train")
    assert digest(workflow.results / "model/weights.h5") == digest(expected.results / "model/weights.h5")
