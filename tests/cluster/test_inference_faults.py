"""A node dies while it segments: only its subvolumes are made again, and the volume is the same."""

import re
import shutil

import pytest

from ..workflow.test_kill import digest, wait_for
from .conftest import CLUSTER_RUN, ClusterWorkflow
from .mini_slurm.cluster import wait_until

MADE_BEFORE = ("volumes", "membrane", "partitions", "coordinates", "records", "model")


def subvolumes_on(cluster, name):
    """Subvolumes that a node is at work on."""
    text = " ".join(process.command for process in cluster.processes()[name])
    return set(re.findall(r"subvolumes/(z\d+-y\d+-x\d+)\.h5", text))


@pytest.mark.slow
def test_only_the_dead_nodes_subvolumes_are_made_again(undisturbed, idle, tmp_path):
    workflow = ClusterWorkflow(tmp_path / "disturbed", CLUSTER_RUN, idle, "slurm-generic")
    for name in MADE_BEFORE:
        shutil.copytree(undisturbed.results / name, workflow.results / name)
    shutil.copytree(undisturbed.folder / ".snakemake/metadata", workflow.folder / ".snakemake/metadata")
    folder = workflow.results / "segmentation/phantom/subvolumes"
    expected = sorted((undisturbed.results / "segmentation/phantom/subvolumes").glob("*.h5"))
    assert len(expected) >= 8

    process = workflow.start("reconcile")
    wait_for(lambda: len(list(folder.glob("*.h5"))) >= 2 and subvolumes_on(idle, "n2"), process)
    lost = subvolumes_on(idle, "n2")
    idle.kill_node("n2")
    elsewhere = {name for node in ("n1", "n3") for name in subvolumes_on(idle, node)}
    made = {path.name: path.stat().st_ino for path in folder.glob("z*.h5")}  # another one if written again
    assert process.wait(timeout=240) == 0

    for name, inode in made.items():
        if name.removesuffix(".h5") in lost:  # written, but its job was not over: it may be made again
            continue
        assert (folder / name).stat().st_ino == inode, f"{name} was made again"
    again = [name for name in elsewhere - lost if times_started(workflow, name) > 1]
    assert again == []
    assert any(times_started(workflow, name) > 1 for name in lost)
    for path in expected:
        assert digest(folder / path.name) == digest(path)
    name = "segmentation/phantom/segmentation.h5"
    assert digest(workflow.results / name) == digest(undisturbed.results / name)
    wait_until(lambda: idle.unfinished_jobs() == [], 20, "jobs left in the queue")
    wait_until(lambda: not any(idle.processes().values()), 20, f"still running: {idle.processes()}")


def times_started(workflow: ClusterWorkflow, subvolume: str) -> int:
    """Jobs that were submitted for a subvolume; a group's script names its targets."""
    scripts = (workflow.folder / ".snakemake/cluster").glob("*.job")
    return sum(f"subvolume={subvolume}" in path.read_text() for path in scripts)
