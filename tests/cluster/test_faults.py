"""Training and inference meet every kind of death: they end, start again, and end with the same bytes."""

import re
import signal
import time

import pytest

from ..pauses import Pause
from ..small_run import SMALL_RUN, digest
from .conftest import MADE_AFTER_RECORDS, ClusterWorkflow, repeated
from .mini_slurm.node import send

STEPS = SMALL_RUN["train"]["checkpoint_steps"]
CONFIG = {**SMALL_RUN, "train": {**SMALL_RUN["train"], "stall_seconds": 15}}  # until a rank on a dead node is missed


class Training:
    """A run of which every attempt to train stops after its first checkpoint, on both nodes."""

    def __init__(self, workflow, pause, process):
        self.workflow = workflow
        self.cluster = workflow.cluster
        self.pause = pause
        self.process = process

    def ranks(self):
        """Processes of training on each of its nodes, the Python that trains itself."""
        found = {
            name: [p for p in processes if re.match(r"\S*python\S* \S*ffn train ", p.command)]
            for name, processes in self.cluster.processes().items()
        }
        return {name: processes for name, processes in found.items() if processes}

    def resumed_from(self):
        """Step of the checkpoint with which this attempt began."""
        log = (self.workflow.results / "logs/train.log").read_text()
        return int(re.search(r"resuming from \S+/step-(\d+)", log)[1])


def kill_rank(training):
    _, second = training.ranks().values()
    send(second, signal.SIGKILL)
    training.pause.resume()


def kill_node(training):
    _, second = training.ranks()
    training.cluster.kill_node(second)
    training.pause.resume()


def reach_walltime(training):
    """Slurm, which looks every half minute, sends SIGTERM, as for `scancel`, and after its KillWait SIGKILL."""
    for number, _, _ in training.cluster.jobs():
        training.cluster.run("scontrol", "update", f"JobId={number}", "EndTime=now+1")
    training.pause.resume_with(signal.SIGTERM)


# By what happens: whether training is asked to end, and then writes a checkpoint.
FAULTS = {kill_rank: False, kill_node: False, reach_walltime: True}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_training_survives_every_fault(undisturbed, idle, tmp_path):
    workflow = ClusterWorkflow(tmp_path, CONFIG, idle, "slurm-generic")
    repeated(undisturbed, workflow, MADE_AFTER_RECORDS)
    pause = Pause("train", "ffn.training.checkpoint:CheckpointFolder.save")
    with workflow.started("train_all", "--retries", str(len(FAULTS)), pause=pause) as process:
        training = Training(workflow, pause, process)
        for number, (strike, is_asked) in enumerate(FAULTS.items(), 1):
            struck = pause.wait(process, 2)
            strike(training)
            while any(rank.is_running() for rank in struck):
                assert process.poll() is None
                time.sleep(0.2)
            pause.wait(process, 2)
            step = training.resumed_from()
            assert step // STEPS == number and (step % STEPS > 0) == is_asked, strike.__name__
        pause.resume()
        assert process.wait() == 0
    assert digest(workflow.results / "model/weights.h5") == digest(undisturbed.results / "model/weights.h5")
    idle.wait_until_idle()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_the_dead_nodes_subvolumes_are_made_again(undisturbed, idle, tmp_path):
    workflow = ClusterWorkflow(tmp_path, SMALL_RUN, idle, "slurm-generic")
    repeated(undisturbed, workflow, ["segmentation", "agglomeration"])
    folder = workflow.results / "segmentation/phantom/subvolumes"
    # the first process that has a subvolume complete, but under another name
    pause = Pause("/subvolumes/", "ffn.io.atomic:_replace", before=True, token=tmp_path / "token")
    with workflow.started("reconcile_all", pause=pause) as process:
        (stopped,) = pause.wait(process)
        (node,) = [name for name, found in idle.processes().items() if stopped.pid in {p.pid for p in found}]
        while len(list(folder.glob("z*.zarr/zarr.json"))) < 3 or working_nodes(idle) != {node}:
            assert process.poll() is None
            time.sleep(0.1)
        made = {
            path.parent.name: path.stat().st_ino for path in folder.glob("z*.zarr/zarr.json")
        }  # others if rewritten
        idle.kill_node(node)
        assert process.wait() == 0

    lost = {path.parent.name for path in folder.glob("z*.zarr/zarr.json")} - made.keys()
    assert len(lost) == 1 and times_started(workflow, *lost) == 2
    again = {name for name in made if times_started(workflow, name) == 2}
    assert len(again) <= 1, "more than the job of the dead node was repeated"
    for name in made.keys() - again:
        assert (folder / name / "zarr.json").stat().st_ino == made[name], f"{name} was made again"
    for path in (undisturbed.results / "segmentation/phantom/subvolumes").glob("*.zarr"):
        assert digest(folder / path.name / "zarr.json") == digest(path / "zarr.json")
    name = "segmentation/phantom/segmentation.zarr/zarr.json"
    assert digest(workflow.results / name) == digest(undisturbed.results / name)
    idle.wait_until_idle()


def working_nodes(cluster) -> set[str]:
    """Nodes on which something runs."""
    return {name for name, found in cluster.processes().items() if found}


def times_started(workflow: ClusterWorkflow, name: str) -> int:
    """Jobs that were submitted for a subvolume; a group's script names its targets."""
    scripts = (workflow.folder / ".snakemake/cluster").glob("*.job")
    return sum(f"subvolume={name.removesuffix('.zarr')}" in path.read_text() for path in scripts)
