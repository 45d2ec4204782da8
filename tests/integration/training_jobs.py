"""Real training jobs: two tubes one voxel apart, a tiny network, processes under a launcher."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.volume import Placement
from ffn.machine.schedulers import RANK_VARIABLES
from ffn.model.store import load_model

from ..pauses import Pause
from ..training_records import write_shards
from ..volumes import write_volume

FOV, DELTAS, SHAPE, OFFSET = (9, 11, 13), (2, 3, 3), (24, 40, 48), (3, 0, 10)
MODEL = ["--depth", "2", "--features", "6", "--fov-size", "9", "11", "13", "--deltas", "2", "3", "3"]
VALIDATION_BOX = "3:27,0:40,10:58"
MAX_PRED = ["--fov-policy", "max_pred", "--deltas", "1", "1", "1"]  # its larger patches still fit around all records
# Six FOVs a step, however they are shared out: an odd number for each process, whose exchange is the general one.
SIX = [*MODEL, "--max-steps", "20", "--log-steps", "5"]
TWO_FOR_SIX = ["--num-workers", "2", "--virtual-workers", "3"]
SAVED = "ffn.training.checkpoint:CheckpointFolder.save"  # after it, a checkpoint is whole
RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")
TIMES = {"seconds", "fovs_per_second", "input_ms", "compute_ms", "allreduce_ms", "rest_ms"}


def tube_labels() -> np.ndarray:
    """Return the labels of two tubes along x, one voxel apart."""
    z, y, _ = np.indices(SHAPE)
    labels = np.zeros(SHAPE, np.uint64)
    labels[(z - 12) ** 2 + (y - 12) ** 2 <= 36] = 5
    labels[(z - 12) ** 2 + (y - 25) ** 2 <= 36] = 9
    return labels


def make_centers() -> np.ndarray:
    """Return the voxels that training may start from, in a random order."""
    margin = np.array([f // 2 + d for f, d in zip(FOV, DELTAS, strict=True)])
    inner = tube_labels()[tuple(slice(m, n - m) for m, n in zip(margin, SHAPE, strict=True))]
    return np.random.default_rng(1).permutation(np.argwhere(inner > 0) + margin + OFFSET)


def make_tubes(folder: Path) -> None:
    """Write image and labels of the tubes, which are bright, and copies to validate on."""
    labels = tube_labels()
    noise = np.random.default_rng(0).normal(0, 12, SHAPE)
    image = (np.where(labels > 0, 170, 60) + noise).clip(0, 255).astype(np.uint8)
    placement = Placement(Box.from_shape(SHAPE, OFFSET), (12.0, 10.0, 8.0))
    for name, voxels in (("raw", image), ("labels", labels)):
        write_volume(f"{folder}/{name}.h5:{name}", voxels, placement)
        shutil.copy(folder / f"{name}.h5", folder / f"copy-of-{name}.h5")


def validation(tubes: Path) -> list[str]:
    """Return the option to validate on the copies; a box of the volume that is trained on would have to be apart."""
    volume = f"{tubes}/copy-of-raw.h5:raw,{tubes}/copy-of-labels.h5:labels"
    return ["--validate", f"copy={volume},{VALIDATION_BOX}"]


def make_records(folder: Path, centers_zyx: np.ndarray, counts: tuple[int, ...]) -> None:
    """Write shards with the given numbers of records."""
    write_shards(folder, centers_zyx, counts, "tubes")


def command(
    tubes: Path,
    out: Path,
    options: list[str],
    processes: int = 1,
    launcher: str = "ffn launch",
    records: str = "records",
) -> list[str]:
    """Return the command of a training job; one process has no launcher."""
    volume = f"tubes={tubes}/raw.h5:raw,{tubes}/labels.h5:labels"
    train = [sys.executable, "-m", "ffn", "train", "--records", f"{tubes}/{records}", "--volume", volume]
    # not auto, so that what the tests expect is the same on every machine
    options = ["--out", str(out), "--precision", "float32", "--permutable-axes", "--learning-rate", "0.003", *options]
    return (launch(launcher, processes) if processes > 1 else []) + train + options


def launch(launcher: str, processes: int) -> list[str]:
    """Return what a command begins with that starts `processes` processes on this machine."""
    return {
        "ffn launch": [sys.executable, "-m", "ffn", "launch", "-n", str(processes), "--launcher", "local", "--"],
        "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(processes)],
    }[launcher]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a job, which is in no other job."""
    inherited = {name: value for name, value in os.environ.items() if name not in dict(RANK_VARIABLES)}
    return {**inherited, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}


def run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess:
    """Run a job to its end."""
    return subprocess.run(arguments, env=environment(**variables), capture_output=True, text=True)


def succeed(arguments: list[str], **variables: str) -> str:
    """Run a job, which succeeds, and return what it told."""
    done = run(arguments, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


class Job:
    """A job that runs while the test does something to it; a ``with`` block leaves nothing of it."""

    def __init__(self, arguments: list[str], log: Path, **variables: str) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(arguments, env=environment(**variables), stdout=file, stderr=file)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.ranks().values(), self._process]:
            process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Number of the process that was started."""
        return self._process.pid

    def ranks(self) -> dict[int, psutil.Process]:
        """Return the training processes by rank."""
        found = {}
        children = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        for process in children:
            try:
                if process.cmdline()[1:4] == ["-m", "ffn", "train"]:
                    variables = process.environ()
                    found.update({int(variables[name]): process for name in RANKS if name in variables})
            except psutil.Error:  # it has just ended
                continue
        return found

    def wait_for(self, condition) -> None:
        """Wait until something is so while the job runs."""
        while not condition():
            assert self._process.poll() is None, self.told()
            time.sleep(0.05)

    def wait_at(self, pause: Pause, processes: int) -> None:
        """Wait until this many processes are stopped there."""
        pause.wait(self._process, processes)

    def send(self, number: signal.Signals, rank: int | None = None) -> None:
        """Send a signal to a rank, or to the launcher."""
        process = psutil.Process(self._process.pid) if rank is None else self.ranks()[rank]
        process.send_signal(number)

    def end(self) -> int:
        """Wait for the end of the job and of all its processes; return the exit code."""
        ranks = self.ranks().values()
        code = self._process.wait()
        psutil.wait_procs(ranks)
        return code

    def told(self) -> str:
        """Return what it has told so far."""
        return self._log.read_text()


def checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints of a model folder."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*"))


def shared_state(folder: Path, step: int) -> dict[str, np.ndarray]:
    """Weights and optimizer after this many steps."""
    return hdf5.read_arrays(folder / f"checkpoints/step-{step:08d}/shared.h5")[0]


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of metrics."""
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def validation_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of the table of validation."""
    with (folder / "validation.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out what no two runs have in common."""
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def require_same_training(one: Path, other: Path) -> None:
    """Check that two jobs did the same, and are in the same state."""
    assert (one / "weights.h5").read_bytes() == (other / "weights.h5").read_bytes()
    assert load_model(one).config == load_model(other).config
    rows = [without_times(read_rows(folder)) for folder in (one, other)]
    for row in (*rows[0], *rows[1]):
        del row["bytes_sent"]  # by more processes, more
    assert rows[0] == rows[1]
    last = checkpoints(one)[-1]
    for step in {*checkpoints(one)} & {*checkpoints(other)}:
        np.testing.assert_equal(shared_state(one, step), shared_state(other, step))
    parts = [hdf5.read_arrays(folder / f"checkpoints/step-{last:08d}/parts.h5")[0] for folder in (one, other)]
    np.testing.assert_equal(*({name: part for name, part in each.items() if "seconds" not in name} for each in parts))
