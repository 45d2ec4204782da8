"""A node dies while it segments: only its subvolumes are made again, and the volume is the same."""

import time

import pytest

from ..pauses import Pause
from ..small_run import SMALL_RUN, digest
from .conftest import ClusterWorkflow, repeated


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_only_the_dead_nodes_subvolumes_are_made_again(undisturbed, idle, tmp_path):
    workflow = repeated(undisturbed, tmp_path / "disturbed", SMALL_RUN, ["segmentation", "agglomeration"])
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
