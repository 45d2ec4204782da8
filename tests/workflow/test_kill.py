"""SIGTERM and kill -9 of Snakemake in the middle of a stage: the same command resumes and ends with the same bytes."""

import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from ..pauses import Pause
from ..small_run import SMALL_RUN, Workflow, digest, shown

FINAL = ["model/weights.h5", "segmentation/phantom/segmentation.zarr/zarr.json"]
TARGET = "reconcile_all"  # what follows is made of these, in the same way as always


def wait_for_orphans(folder: Path, pause: Pause) -> None:
    """Wait until the jobs of a killed Snakemake have ended by themselves: for ever if one does not."""
    while processes_in(folder):
        pause.resume()
        time.sleep(0.1)


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes whose working directory is `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_ended_in_train_and_killed_in_segment_ends_with_the_same_bytes(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "disturbed")
    workflow = Workflow(tmp_path / "disturbed", SMALL_RUN)
    results = workflow.results
    for name in ("model", "segmentation"):
        shutil.rmtree(results / name)

    training = Pause("train", "ffn.training.checkpoint:CheckpointFolder.save")
    with workflow.started(TARGET, pause=training) as process:
        training.wait(process, number=2)
        process.send_signal(signal.SIGTERM)
        training.resume_with(signal.SIGTERM)
        assert process.wait() == 1
    assert "by SIGTERM" in (results / "logs/train.log").read_text()

    assert list((results / "model/checkpoints").glob("step-*"))
    assert not (results / "model/model.yaml").exists()

    segmenting = Pause("segment", "ffn.inference.subvolume:CheckpointFile.save")
    with workflow.started(TARGET, pause=segmenting) as process:
        segmenting.wait(process)
        assert "resum" in (results / "logs/train.log").read_text().lower()
    wait_for_orphans(workflow.folder, segmenting)
    assert list((results / "segmentation/phantom/subvolumes").glob("*.checkpoint"))

    shown(workflow.fork(TARGET))
    assert any("resum" in path.read_text().lower() for path in (results / "logs/segment/phantom").glob("*.log"))
    assert list(results.rglob(".*.tmp*")) == []
    for name in FINAL:
        assert digest(results / name) == digest(finished.results / name), name
    for part in (finished.results / "segmentation/phantom/subvolumes").glob("*.zarr"):
        same = results / "segmentation/phantom/subvolumes" / part.name / "zarr.json"
        assert digest(same) == digest(part / "zarr.json")
