"""kill -9 of Snakemake in the middle of a stage: the same command resumes and ends with the same bytes."""

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import SMALL_RUN, Workflow

FINAL = [
    "model/weights.h5",
    "segmentation/phantom/segmentation.h5",
    "evaluation/phantom.json",
    "precomputed/phantom/neuroglancer.json",
]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wait_for(condition, process: subprocess.Popen, seconds: float = 240) -> None:
    """Wait until `condition()` holds; the process must still be running then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "Snakemake ended before it could be killed"
        assert time.monotonic() < deadline, "the stage did not get far enough in time"
        time.sleep(0.02)


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def kill(process: subprocess.Popen, folder: Path) -> None:
    """Kill Snakemake alone; its jobs have to end by themselves."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while processes_in(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(folder) == [], "jobs survived the Snakemake that started them"


@pytest.mark.slow
def test_killed_in_train_and_in_segment_ends_with_the_same_bytes(finished, tmp_path):
    workflow = Workflow(tmp_path / "disturbed", SMALL_RUN)
    results = workflow.results

    process = workflow.start()
    wait_for(lambda: list((results / "model/checkpoints").glob("step-*")), process)
    kill(process, workflow.folder)
    assert not (results / "model/model.yaml").exists()

    process = workflow.start()
    log = results / "logs/segment/phantom"
    wait_for(lambda: any("segment:" in path.read_text() for path in log.glob("*.log")), process)
    assert "resum" in (results / "logs/train.log").read_text().lower()
    kill(process, workflow.folder)

    workflow.succeed()
    assert list(results.rglob(".*.tmp-*")) == []
    for name in FINAL:
        assert digest(results / name) == digest(finished.results / name), name
    for part in (finished.results / "segmentation/phantom/subvolumes").glob("*.h5"):
        assert digest(results / "segmentation/phantom/subvolumes" / part.name) == digest(part)
