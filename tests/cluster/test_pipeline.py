"""A run on a Slurm cluster: every node takes part, and nothing of the result depends on where it was made."""

import re

import pytest

from ..small_run import digest
from .conftest import ClusterWorkflow

pytestmark = pytest.mark.slow

STORES = ["segmentation/phantom/segmentation.zarr", "segmentation/phantom/filled.zarr"]
MADE_OF_VOXELS = ["model/weights.h5", *(f"{store}/zarr.json" for store in STORES)]  # with a checksum of all voxels


def test_the_cluster_and_one_machine_give_the_same(undisturbed, finished):
    for name in MADE_OF_VOXELS:
        assert digest(undisturbed.results / name) == digest(finished.results / name), name


def test_training_and_segmenting_ran_on_two_nodes_and_left_nothing_running(undisturbed):
    assert re.search(r"--nodes=2 --ntasks=2 .*train", undisturbed.output)
    (nodes,) = used_nodes(undisturbed, "rule_train")
    assert re.fullmatch(r"n\[\d[-,]\d\]", nodes), nodes
    assert len(used_nodes(undisturbed, "group_segment_segment")) == 2
    assert undisturbed.cluster.jobs() == []
    assert not any(undisturbed.cluster.processes().values())


def used_nodes(workflow: ClusterWorkflow, kind: str) -> set[str]:
    """Nodes of the jobs whose logs lie in one of the plugin's folders, as Slurm remembers them."""
    numbers = [number for folder, number in submitted(workflow) if folder == kind]
    shown = [workflow.cluster.run("scontrol", "-o", "show", "job", number).stdout for number in numbers]
    return {re.search(r" NodeList=(\S+)", text).group(1) for text in shown}


def submitted(workflow: ClusterWorkflow) -> list[tuple[str, str]]:
    """Folder of the log and id of every job that the plugin submitted."""
    return re.findall(r"slurm_logs/([^/]+)/\S*?(\d+)\.log\)", workflow.output)
