"""Trainings from random weights by `ffn train`, for the seconds that are left: curves against time, and weights."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from ffn.geometry import ZYX
from ffn.io.open import open_volume
from ffn.training.checkpoint import export_checkpoint

from .common import OUT, PACK, TINY, Report, packed_image, packed_labels
from .prepare import blobs

BATCH = 4 if TINY else 32
# config/fib25-from-scratch.yaml, the best of docs/experiments.md, but for batches of 32 instead of 4. Its rate stays:
# with that times the root of 8, the loss exploded on an H100 after 400 steps.
RECIPE = (
    *("--engine", "jax", "--precision", "bfloat16", "--num-workers", "1", "--batch-size", str(BATCH)),
    *("--optimizer", "muon", "--learning-rate", "0.0015", "--fov-policy", "max_pred"),
    *("--validation-examples", str(BATCH), "--log-steps", "5" if TINY else "50", "--checkpoint-minutes", "1"),
)
ENDING = 20.0  # seconds before the limit at which a training is stopped: step, checkpoint, export and archive
KILLED_AFTER = 12.0  # seconds after the SIGTERM; the newest checkpoint counts then
SHARE_AT_FULL_RATE = 0.5  # of the time; then the rate falls, over as many steps as the measured speed allows
SAFETY = 0.95  # of those steps, so that the fall ends in time
STARTING = 12.0  # seconds until a training that finds its step compiled makes the first one
SMALLEST = "0.001"  # µm³, as the configurations have it; FIB-25 has voxels of 10 nm, which ffn supposes
# Of SNEMI3D at 12 nm: as much of z < 64 as 12 MB hold; 64 ≤ z < 80 with room for FOVs.
TRAINED_ON, CHOSEN_ON = np.s_[:64, :448, :400], np.s_[48:80, 96:416, 96:416]


@dataclass(frozen=True)
class Run:
    """A volume, its boxes, and the network for its voxels."""

    name: str
    image: str
    labels: str
    train_box: str
    validate_box: str
    fov_zyx: tuple[int, int, int]
    deltas_zyx: tuple[int, int, int]
    options: tuple[str, ...] = ()

    @property
    def records(self) -> Path:
        """The folder of its records, in .gpu-check."""
        return PACK / f"records-{self.name}"

    def reach(self, moves: int) -> list[str]:
        """Return half a FOV and so many moves, as values of an option."""
        return [str(fov // 2 + moves * delta) for fov, delta in zip(self.fov_zyx, self.deltas_zyx, strict=True)]


def runs() -> dict[str, Run]:
    """Return the trainings by their names."""
    if TINY:
        tiny = (f"{PACK}/train.h5:raw", f"{PACK}/train.h5:labels", "0:40,0:40,0:60", "0:40,0:40,60:90")
        return {"snemi3d": Run("snemi3d", *tiny, (9, 9, 9), (2, 2, 2), ("--depth", "2"))}
    snemi = (f"{PACK}/snemi3d.h5:raw", f"{PACK}/snemi3d.h5:labels")
    fib = (packed_image(), packed_labels())
    rates = ("--misaligned-slice-rate", "0.02", "--missing-slice-rate", "0.02", "--blur-rate", "0.02")
    sections = ("--permutable-axes", "y", "x", "--contrast-jitter", "0.1", "--brightness-jitter", "0.1", *rates)
    return {
        "fib25": Run("fib25", *fib, "0:120,0:250,0:250", "120:145,0:250,0:250", (33, 33, 33), (8, 8, 8)),
        "snemi3d": Run(
            *("snemi3d", *snemi, "0:64,0:448,0:320", "0:64,0:448,336:400", (17, 33, 33), (4, 8, 8), sections)
        ),
    }


def prepare(report: Report) -> None:
    """Write the volumes that a package of a few megabytes holds, and the records of all trainings."""
    if TINY:
        raw, labels = blobs((40, 40, 90), np.random.default_rng(0))
        write(PACK / "train.h5", raw, labels)
    else:
        prepare_snemi3d(Path(os.environ.get("FFN_SHARED", "../shared")) / "data/snemi3d/snemi3d_z000-080.h5")
    for run in runs().values():
        shutil.rmtree(run.records, ignore_errors=True)
        scratch = PACK / f"{run.name}-scratch"
        partitions, coordinates = f"{scratch}/partitions.zarr", f"{scratch}/coordinates.h5"
        ffn("partition", "--labels", run.labels, "--box", run.train_box, "--out", partitions,
            "--min-label-um3", SMALLEST, "--lom-radius", *run.reach(1))  # fmt: skip
        ffn("coordinates", "--partitions", partitions, "--out", coordinates, "--margin", *run.reach(2))
        ffn("records", "--coordinates", f"{run.name}={coordinates}", "--out", str(run.records), "--num-shards", "4",
            "--max-records", "60000")  # fmt: skip
        shutil.rmtree(scratch)
        report.add(records=run.name)


def prepare_snemi3d(source: Path) -> None:
    """Write what config/snemi3d.yaml trains on, as far as it fits, and the sections that it chooses on."""
    whole = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, equalised in (("raw", ("--clahe-tile", "128")), ("labels", ())):
            out = f"{folder}/{name}.zarr"
            ffn("ingest", f"{source}:{name}", "--voxel-size", "30", "6", "6", "--mip", "1", *equalised, "--out", out)
            with open_volume(out) as volume:
                whole[name] = volume.read(volume.box)
    for name, part in (("snemi3d", TRAINED_ON), ("snemi3d-chosen-on", CHOSEN_ON)):
        write(PACK / f"{name}.h5", whole["raw"][part], whole["labels"][part], (30, 12, 12))


def write(path: Path, raw: np.ndarray, labels: np.ndarray, voxel_size_zyx_nm: ZYX = (10, 10, 10)) -> None:
    """Write image and labels, compressed."""
    with h5py.File(path, "w") as file:
        for name, array in (("raw", raw), ("labels", labels)):
            options = {"chunks": (8, 40, 40), "compression": 9, "shuffle": name == "labels"}
            file.create_dataset(name, data=array, **options).attrs["resolution"] = voxel_size_zyx_nm


def fib25(report: Report) -> None:
    """Train on FIB-25, z < 120."""
    train(report, runs()["fib25"])


def snemi3d(report: Report) -> None:
    """Train on SNEMI3D, z < 64."""
    train(report, runs()["snemi3d"])


def train(report: Report, run: Run) -> None:
    """Train at the full rate for half of the time, then let the rate fall; archive what there is."""
    end = time.time() + report.seconds_left - ENDING
    folder = Path(os.environ["SCRATCH"], "trained", run.name)
    shutil.rmtree(folder, ignore_errors=True)  # an earlier call's
    middle = time.time() + SHARE_AT_FULL_RATE * (end - time.time())
    full = folder / "full-rate"
    options = ("--max-steps", "1000000", "--warmup-steps", "100", "--ema-decay", "0.999")
    first = train_until(run, full, middle, *options, rows=2 if TINY else sys.maxsize)
    report.add(run=run.name, part="full rate", **first)
    final = newest_model(full)
    if final and (row := first["metrics"]):
        left = 5.0 if TINY else max(10.0, end - time.time() - STARTING)
        steps = int(SAFETY * left * float(row["step"]) / float(row["seconds"]))
        last = train_until(
            *(run, folder / "falling-rate", end, "--max-steps", str(steps), "--schedule", "cosine", "--init", final),
            *("--warmup-steps", str(max(1, min(100, steps // 10))), "--ema-decay", f"{max(0.5, 1 - 20 / steps):.5f}"),
        )
        report.add(run=run.name, part="falling rate", planned_steps=steps, **last)
        final = newest_model(folder / "falling-rate") or final
    archive(folder, final)


def train_until(run: Run, out: Path, end: float, *options: str, rows: int = sys.maxsize) -> dict:
    """Run `ffn train`, with a SIGTERM at `end`, or after so many validations; return the last rows of its tables."""
    source = f"{run.name}={run.image},{run.labels}"
    shape = ("--fov-size", *map(str, run.fov_zyx), "--deltas", *map(str, run.deltas_zyx))
    command = [*(sys.executable, "-m", "ffn", "train", "--records", str(run.records), "--volume", source)]
    command += ["--validate", f"{source},{run.validate_box}", "--out", str(out), *RECIPE, *shape]
    command += ["--validation-steps", "20" if TINY else "2000", *options, *run.options]
    child = subprocess.Popen(command)
    while child.poll() is None and time.time() < end and len(table(out / "validation.csv")) < rows:
        time.sleep(0.1)
    child.terminate()
    try:
        child.wait(KILLED_AFTER)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    metrics, scores = table(out / "metrics.csv"), table(out / "validation.csv")
    rates = [float(row["fovs_per_second"]) for row in metrics[len(metrics) // 2 :]]
    return {
        "exit_of_train": child.returncode,
        "fovs_per_second": round(float(np.median(rates)), 1) if rates else 0,
        "metrics": metrics[-1] if metrics else {},
        "validation": scores[-1] if scores else {},
    }


def table(path: Path) -> list[dict[str, str]]:
    """Read a table of a training; empty if there is none."""
    return list(csv.DictReader(path.open())) if path.exists() else []


def newest_model(folder: Path) -> str | None:
    """Return the model of a training, or the newest checkpoint of one that was stopped."""
    if (folder / "weights.h5").exists():
        return str(folder)
    return max(map(str, folder.glob("checkpoints/step-*")), default=None)


def archive(folder: Path, model: str | None) -> None:
    """Keep the tables and the model in one file for all trainings, without checkpoints."""
    if model and "checkpoints" in model:
        export_checkpoint(model, folder / "model")
    elif model:
        (folder / "model").mkdir()
        for name in ("model.yaml", "weights.h5"):
            shutil.copy(Path(model, name), folder / "model")
    for part in ("full-rate", "falling-rate"):
        for name in ("metrics.csv", "validation.csv"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(folder / part / name, folder / f"{part}-{name}")
        shutil.rmtree(folder / part, ignore_errors=True)
    with tarfile.open(OUT / "trained.tgz", "w:gz") as tar:
        tar.add(folder.parent, "trained")


def ffn(*arguments: str) -> None:
    """Run a stage."""
    subprocess.run([sys.executable, "-m", "ffn", *arguments], check=True)
