"""Checkpoints: written whole, verified, and used only by the run they belong to."""

import logging
import resource
import shutil

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ModelError, TrainError, UnwritableError
from ffn.model.network import weight_shapes
from ffn.model.store import load_model
from ffn.training.checkpoint import Checkpoint, CheckpointFolder, export_checkpoint
from ffn.training.parallel.process_group import ProcessGroup

FINGERPRINT = {"rng_seed": 1, "train": {"learning_rate": 0.1, "permutable_axes": ("y", "x")}}


def make(step: int, parts=("lanes/0", "lanes/1")) -> Checkpoint:
    def state(part):
        return {"position": np.array([step, int(part[-1])]), "canvas_logit": np.full((3, 4), step + 0.5, np.float32)}

    shared = {"weights/conv0_a/weights": np.full((3, 2), step, np.float32)}
    return Checkpoint(step, shared, {part: state(part) for part in parts})


def folder_of(tmp_path, fingerprint=FINGERPRINT, keep=3, group=None, interval=None):
    return CheckpointFolder(tmp_path / "checkpoints", fingerprint, group or ProcessGroup(), keep, interval)


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


@pytest.fixture
def saved(tmp_path):
    for step in (10, 20, 30):
        folder_of(tmp_path).save(make(step))
    return tmp_path


def test_only_the_newest_are_kept_and_no_unfinished_one(saved, caplog):
    caplog.set_level(logging.INFO)
    checkpoint = folder_of(saved).restore(100)
    np.testing.assert_equal(checkpoint, make(30))
    assert checkpoint.parts["lanes/1"]["canvas_logit"].dtype == np.float32
    assert "resuming from" in caplog.text and "step-00000030" in caplog.text
    folder_of(saved, keep=2).save(make(40))
    assert names(saved) == ["step-00000030", "step-00000040"]
    half = saved / "checkpoints" / ".step-00000050.tmp-elsewhere-1"
    shutil.copytree(saved / "checkpoints" / "step-00000030", half)
    np.testing.assert_equal(folder_of(saved).restore(100), make(40))
    assert not half.exists()


def test_one_between_regular_ones_is_kept_until_the_next(tmp_path):
    for step, kept in ((10, [10]), (17, [10, 17]), (20, [10, 20]), (27, [10, 20, 27]), (30, [10, 20, 30])):
        folder_of(tmp_path, interval=10).save(make(step))
        assert names(tmp_path) == [f"step-{each:08d}" for each in kept]


@pytest.mark.parametrize("name", ["shared.h5", "parts.h5", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(saved, caplog, name, damage):
    caplog.set_level(logging.INFO)
    path = saved / "checkpoints" / "step-00000030" / name
    content = path.read_bytes()
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    elif name == "manifest.json":
        path.write_bytes(content.replace(b'"sha256"', b'"sha255"'))
    else:
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    np.testing.assert_equal(folder_of(saved).restore(100), make(20))
    assert "step-00000030" in caplog.text and name in caplog.text
    assert names(saved) == ["damaged-step-00000030", "step-00000010", "step-00000020"]


def test_another_training_is_refused_and_the_difference_is_named(saved):
    other = {"rng_seed": 1, "train": {"learning_rate": 0.2, "permutable_axes": ("y", "x")}}
    with pytest.raises(TrainError, match=r"step-00000030: .*train.learning_rate"):
        folder_of(saved, other).restore(100)
    for new, named in (({"new": {"a": 0, "b": 1}}, "new.a is 0"), ({"num_lanes": 4}, "batch_size is 4")):
        with pytest.raises(TrainError, match=named):
            folder_of(saved, other | new).restore(100)
    with pytest.raises(TrainError, match="train.max_steps is 25"):
        folder_of(saved).restore(25)
    assert names(saved) == ["step-00000010", "step-00000020", "step-00000030"]


@pytest.mark.parametrize("room", [0, 4000])
def test_a_full_disk_ends_a_training_in_one_line_and_keeps_the_last_checkpoint(saved, room):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))  # h5py notices some of them as it closes the file
    try:
        with pytest.raises(UnwritableError, match="step-00000040"):
            folder_of(saved).save(make(40)._replace(shared={"weights": np.zeros(10**5)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(saved)[-1] == "step-00000030"


@pytest.mark.parametrize("sizes", [(3, 3), (2, 1), (1, 4)])
def test_every_process_gets_what_all_of_them_saved(tmp_path, run_processes, sizes):
    lanes, (before, after) = [f"lanes/{lane}" for lane in range(8)], sizes
    run_processes(before, lambda group: folder_of(tmp_path, group=group).save(make(10, lanes[group.rank :: before])))
    for checkpoint in run_processes(after, lambda group: folder_of(tmp_path, group=group).restore(100)):
        np.testing.assert_equal(checkpoint, make(10, lanes))


def test_a_checkpoint_becomes_a_model(tmp_path):
    config = ModelConfig(depth=2, features=4, fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3))
    weights = {f"weights/{name}": np.full(shape, 7, np.float32) for name, shape in weight_shapes(config).items()}
    folder = folder_of(tmp_path, {"model": config.model_dump(mode="json")})
    folder.save(Checkpoint(40, weights | {"optimizer/000": np.zeros(3)}, {"lanes/0": {"position": np.zeros(2)}}))
    path = tmp_path / "checkpoints" / "step-00000040"
    export_checkpoint(path, tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert model.config == config and all((array == 7).all() for array in model.weights.values())
    with pytest.raises(ModelError, match="step-00000020: .*'step-00000040'"):
        export_checkpoint(path.with_name("step-00000020"), tmp_path / "again")
