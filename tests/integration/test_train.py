"""Training end to end on two tubes one voxel apart: it learns, alone or in two processes, through kills."""

import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from ffn import atomic, hdf5
from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.model.store import Model, load_model, save_model
from ffn.records import PartitionCounts, RecordIndex, Shard, shard_name
from ffn.tfrecord import encode_example, write_records
from ffn.training.config import TrainConfig
from ffn.training.distributed import LAUNCHER_VARIABLES, ProcessGroup
from ffn.training.initial import initial_weights
from ffn.training.step import Batch, Learner
from ffn.volume import Placement, create_volume

pytestmark = pytest.mark.slow
needs_horovod = pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")

FOV, DELTAS, SHAPE, OFFSET = (9, 11, 13), (2, 3, 3), (24, 40, 48), (3, 0, 10)
MODEL = ["--depth", "2", "--features", "6", "--fov-size", "9", "11", "13", "--deltas", "2", "3", "3"]
LOG = ["--checkpoint-steps", "20", "--keep-checkpoints", "9", "--log-steps", "15"]
TWO = ["--num-workers", "2", "--batch-size", "2", "--max-steps", "110", *LOG]
TIMES = {"seconds", "fovs_per_second"}


def make_tubes(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write image and labels of two bright tubes along x, and return the voxels training may start from."""
    z, y, _ = np.indices(SHAPE)
    labels = np.zeros(SHAPE, np.uint64)
    labels[(z - 12) ** 2 + (y - 12) ** 2 <= 36] = 5
    labels[(z - 12) ** 2 + (y - 25) ** 2 <= 36] = 9
    noise = np.random.default_rng(0).normal(0, 12, SHAPE)
    image = (np.where(labels > 0, 170, 60) + noise).clip(0, 255).astype(np.uint8)
    placement = Placement(Box.from_shape(SHAPE, OFFSET), (12.0, 10.0, 8.0))
    for name, voxels in (("raw", image), ("labels", labels)):
        with create_volume(f"{folder}/{name}.h5:{name}", voxels.dtype, placement) as writer:
            writer.write(writer.box, voxels)
    margin = np.array([f // 2 + d for f, d in zip(FOV, DELTAS, strict=True)])
    inner = labels[tuple(slice(m, n - m) for m, n in zip(margin, SHAPE, strict=True))]
    return np.random.default_rng(1).permutation(np.argwhere(inner > 0) + margin + OFFSET)


def make_records(folder: Path, centers_zyx: np.ndarray, counts: tuple[int, ...]) -> None:
    folder.mkdir()
    shards = []
    for number, part in enumerate(np.split(centers_zyx, np.cumsum(counts)[:-1])):
        path = folder / shard_name(number, len(counts))
        examples = [{"center": center[::-1].tolist(), "label_volume_name": [b"tubes"]} for center in part]
        write_records(path, map(encode_example, examples))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append(Shard(file=path.name, num_records=len(part), sha256=digest))
    total = sum(counts)
    index = RecordIndex(
        format=1,
        num_records=total,
        rng_seed=0,
        volumes={"tubes": total},
        partitions={1: PartitionCounts(num_voxels=total, num_records=total)},
        shards=tuple(shards),
        provenance={},
    )
    atomic.write_json(folder / "index.json", index.model_dump(mode="json"))


@pytest.fixture(scope="module")
def tubes(tmp_path_factory) -> Path:
    """A folder with volumes and records; shards of unequal length."""
    folder = tmp_path_factory.mktemp("tubes")
    make_records(folder / "records", make_tubes(folder)[:107], (40, 25, 35, 7))
    return folder


def command(tubes: Path, out: Path, options: list[str], processes: int = 1, records: str = "records") -> list[str]:
    volume = f"tubes={tubes}/raw.h5:raw,{tubes}/labels.h5:labels"
    train = [sys.executable, "-m", "ffn", "train", "--records", f"{tubes}/{records}", "--volume", volume]
    launcher = [str(Path(sys.executable).parent / "horovodrun"), "--gloo", "-np", str(processes)]
    options = ["--out", str(out), "--permutable-axes", "--learning-rate", "0.003", *options]
    return (launcher if processes > 1 else []) + train + options


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**inherited, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run(arguments: list[str]) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, env=environment(), capture_output=True, text=True, timeout=300)


def succeed(arguments: list[str]) -> str:
    done = run(arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def read_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def undisturbed(tubes) -> Path:
    """A model that two processes trained."""
    succeed(command(tubes, tubes / "undisturbed", MODEL + TWO, processes=2))
    return tubes / "undisturbed"


def test_overfits_two_tubes(tubes):
    out = tubes / "overfit"
    options = ["--num-workers", "1", "--batch-size", "4", "--max-steps", "500", "--log-steps", "100"]
    stderr = succeed(command(tubes, out, MODEL + options))
    first, *_, last = read_rows(out)
    assert float(first["loss"]) > float(last["loss"])
    assert float(last["loss"]) < 0.3  # 0.199 is the entropy of the soft labels
    assert float(last["precision"]) > 0.95 and float(last["f1"]) > 0.65  # the walk leaves corners of the patch out
    assert float(last["epoch"]) > 2
    assert "500/500" in stderr
    model = load_model(out)
    assert (model.config.features, model.config.fov_size_zyx) == (6, FOV)
    assert 60 < model.config.image_mean < 120 and 30 < model.config.image_stddev < 60
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


@needs_horovod
def test_two_processes_hold_bit_identical_weights(undisturbed):
    folders = sorted((undisturbed / "checkpoints").iterdir())
    assert [int(folder.name.removeprefix("step-")) for folder in folders] == [20, 40, 60, 80, 100, 110]
    for folder in folders:
        one, other = json.loads((folder / "manifest.json").read_text())["shared_sha256_by_rank"]
        assert one == other


@needs_horovod
def test_two_processes_train_as_one_with_twice_the_batch(tubes, undisturbed):
    succeed(
        command(
            tubes,
            tubes / "one",
            [*MODEL, "--num-workers", "1", "--batch-size", "4", "--max-steps", "20", *LOG],
        )
    )
    one, two = (load_shared(folder) for folder in (tubes / "one", undisturbed))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=1e-5, err_msg=name)
    assert read_rows(tubes / "one")[0]["epoch"] == read_rows(undisturbed)[0]["epoch"]


def load_shared(folder: Path) -> dict[str, np.ndarray]:
    """Weights and optimizer after 20 steps."""
    return hdf5.read_arrays(folder / "checkpoints/step-00000020/shared.h5")[0]


@needs_horovod
def test_a_killed_run_resumes_to_the_same_weights(tubes, undisturbed):
    out = tubes / "killed"
    arguments = command(tubes, out, MODEL + TWO, processes=2)
    with subprocess.Popen(arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        wait_for(lambda: list(out.glob("checkpoints/step-0000004*")), job)
        for process in psutil.Process(job.pid).children(recursive=True):
            process.kill()
    assert not (out / "weights.h5").exists()
    assert "resuming from" in succeed(arguments)
    for name in ("weights.h5", "model.yaml"):
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert without_times(read_rows(out)) == without_times(read_rows(undisturbed))
    states = [hdf5.read_arrays(folder / "checkpoints/step-00000110/rank-00001.h5")[0] for folder in (out, undisturbed)]
    np.testing.assert_equal(states[0]["canvases_logit"], states[1]["canvases_logit"])


def wait_for(condition, job: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_another_number_of_processes_than_asked_for_stops_at_once(tubes):
    done = run(command(tubes, tubes / "alone", MODEL + TWO))
    assert done.returncode == 2
    assert "train.num_workers: 2 processes asked for, 1 started. Launch with 'horovodrun -np 2" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tubes / "alone").exists()


@needs_horovod
def test_an_error_of_one_process_ends_the_job(tubes):
    centers = np.tile(np.array([[15, 12, 34]]), (6, 1))
    centers[5] = (15, 12, 12)  # its patch begins before the volume
    make_records(tubes / "bad", centers, (6,))
    done = run(command(tubes, tubes / "ended", MODEL + TWO, processes=2, records="bad"))
    assert done.returncode != 0
    assert "tubes: the patch 9:22,4:21,3:22 around record (z, y, x) = (15, 12, 12) leaves the volume" in done.stderr
    assert not (tubes / "ended" / "weights.h5").exists()


def test_no_steps_keep_the_initial_weights(tubes):
    config = ModelConfig(depth=1, features=3, fov_size_zyx=FOV, deltas_zyx=DELTAS, image_mean=99, image_stddev=50)
    save_model(tubes / "init", Model(config, initial_weights(config, 4), {}))
    options = ["--init", f"{tubes}/init", "--num-workers", "1", "--max-steps", "0"]
    succeed(command(tubes, tubes / "copy", options))
    copy, original = load_model(tubes / "copy"), load_model(tubes / "init")
    assert copy.config == original.config
    np.testing.assert_equal(copy.weights, original.weights)
    assert copy.provenance["inputs"]["init"] == f"{tubes}/init"
    assert read_rows(tubes / "copy") == []


@pytest.fixture
def learner():
    config = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
    return Learner(config, TrainConfig(batch_size=2), initial_weights(config, 1), ProcessGroup())


@pytest.fixture
def batch():
    rng = np.random.default_rng(2)
    image, pom_logit, labels = (rng.random((2, 3, 5, 7), np.float32) for _ in range(3))
    return Batch(image, pom_logit, labels)


def test_a_step_changes_all_weights_and_returns_the_updated_map(learner, batch):
    before = learner.weights()
    outcome = learner.step(batch, 0.01)
    assert outcome.finite and 0 < outcome.loss < 2
    assert outcome.pom_logit.shape == (2, 3, 5, 7) and not np.array_equal(outcome.pom_logit, batch.pom_logit)
    assert all((learner.weights()[name] != before[name]).any() for name in before)


def test_a_step_that_is_not_finite_changes_nothing(learner, batch):
    learner.step(batch, 0.01)
    before = learner.state()
    batch.image[1, 2, 3, 4] = np.inf
    assert not learner.step(batch, 0.02).finite
    np.testing.assert_equal(learner.state(), before)


def test_restored_state_continues_bit_identically(learner, batch):
    learner.step(batch, 0.01)
    state = learner.state()
    outcomes = []
    for _ in range(2):
        learner.restore(state)
        outcomes.append([learner.step(batch, 0.01).pom_logit for _ in range(3)])
    np.testing.assert_array_equal(*outcomes)
