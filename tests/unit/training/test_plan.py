"""The checks before training: records, volumes, model and options that do not fit together."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.errors import ModelError, RecordError, VolumeError
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.hdf5_volume import create_volume
from ffn.io.tfrecord import encode_example, write_records
from ffn.io.training_records import PartitionCounts, RecordIndex, Shard, shard_name
from ffn.io.volume import Placement
from ffn.machine.launchers import RANK_VARIABLES
from ffn.model.network import weight_shapes
from ffn.model.store import Model, load_model, save_model
from ffn.training.checkpoint import Checkpoint, CheckpointFolder
from ffn.training.config import TrainConfig
from ffn.training.data.volumes import open_training_volumes
from ffn.training.initial import initial_weights
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import FREE_OPTIONS, TrainingData, choose_model, make_training_plan, with_normalisation
from ffn.training.step import AVERAGES_PREFIX, WEIGHTS_PREFIX

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
TRAIN = TrainConfig(num_workers=1, batch_size=2, permutable_axes=())
BOX = Box((0, 0, 3), (12, 16, 23))


def make_volume(folder: Path, image: np.ndarray) -> dict[str, tuple[str, str]]:
    specs = (f"{folder}/raw.h5:raw", f"{folder}/labels.h5:labels")
    for spec, voxels in zip(specs, (image, np.ones(BOX.shape, np.uint64)), strict=True):
        with create_volume(spec, voxels.dtype, Placement(BOX)) as writer:
            writer.write(BOX, voxels)
    return {"a": specs}


def make_records(folder: Path, volume: str = "a", counts: tuple[int, ...] = (3, 2)) -> str:
    folder.mkdir()
    shards = []
    for number, count in enumerate(counts):
        path = folder / shard_name(number, len(counts))
        example = encode_example({"center": [13, 8, 6], "label_volume_name": [volume.encode()]})
        write_records(path, [example] * count)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append(Shard(file=path.name, num_records=count, sha256=digest))
    index = RecordIndex(
        format=1,
        num_records=sum(counts),
        rng_seed=1,
        volumes={volume: 1},
        partitions={1: PartitionCounts(num_voxels=1, num_records=sum(counts))},
        shards=tuple(shards),
        provenance={},
    )
    atomic.write_json(folder / "index.json", index.model_dump(mode="json"))
    return str(folder)


@pytest.fixture
def image():
    return np.random.default_rng(1).integers(0, 255, BOX.shape).astype(np.uint8)


@pytest.fixture
def data(tmp_path, image):
    return TrainingData(make_records(tmp_path / "records"), make_volume(tmp_path, image))


def plan_of(data, config=TRAIN, rng_seed=1):
    with open_training_volumes(data.volumes) as volumes:
        initial = with_normalisation(choose_model(MODEL, None, rng_seed), volumes, ProcessGroup())
        return make_training_plan(data, volumes, initial, config, rng_seed)


def test_normalisation_is_measured_where_it_is_open(data, image):
    config = plan_of(data).initial.config
    assert (config.image_mean, config.image_stddev) == pytest.approx((image.mean(), image.std()))
    with open_training_volumes(data.volumes) as volumes:
        half_open = choose_model(MODEL.model_copy(update={"image_mean": 7.0}), None, 1)
        config = with_normalisation(half_open, volumes, ProcessGroup()).config
    assert (config.image_mean, config.image_stddev) == pytest.approx((7.0, image.std()))


def test_a_constant_image_is_an_error(tmp_path):
    data = TrainingData(make_records(tmp_path / "records"), make_volume(tmp_path, np.full(BOX.shape, 9, np.uint8)))
    with pytest.raises(VolumeError, match="a: every image voxel is 9, expected finite grey levels that vary"):
        plan_of(data)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_image_with_voxels_that_are_no_numbers_is_an_error(tmp_path, image, bad):
    voxels = image.astype(np.float32)
    voxels[3, 4, 5] = bad
    data = TrainingData(make_records(tmp_path / "records"), make_volume(tmp_path, voxels))
    with pytest.raises(VolumeError, match="a: some image voxels are not finite"):
        plan_of(data)


def test_examples_of_a_plan_are_a_function_of_lane_and_position(data):
    with open_training_volumes(data.volumes) as volumes:
        initial = with_normalisation(choose_model(MODEL, None, 1), volumes, ProcessGroup())
        plan = make_training_plan(data, volumes, initial, TRAIN, 1)
        assert list(plan.lanes(0)) == [0, 1]
        one, other = plan.example_source(plan.lanes(0)), plan.example_source(plan.lanes(0))
        images = [one(lane, position).image for lane, position in ((0, 0), (0, 1), (1, 0), (1, 3))]
        again = [other(lane, position).image for lane, position in ((1, 3), (1, 0), (0, 1), (0, 0))][::-1]
        np.testing.assert_array_equal(images, again)
        assert any(not np.array_equal(images[0], image) for image in images[1:])  # augmented differently


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.5),
        ("batch_size", 1),
        ("precision", "bfloat16"),
        ("reflectable_axes", ()),
        ("compression", "1-bit"),
        ("ema_decay", 0.9),
        ("virtual_workers", 2),
    ],
)
def test_fingerprint_changes_with_what_decides_the_weights(data, field, value):
    assert plan_of(data, TRAIN.model_copy(update={field: value})).fingerprint() != plan_of(data).fingerprint()


def test_fingerprint_changes_with_seed_and_data(data, tmp_path, image):
    fingerprint = plan_of(data).fingerprint()
    assert plan_of(data, rng_seed=2).fingerprint() != fingerprint
    other_records = TrainingData(make_records(tmp_path / "others", counts=(4, 1)), data.volumes)
    assert plan_of(other_records).fingerprint() != fingerprint
    make_volume(tmp_path, np.flip(image, 0).copy())  # same mean and deviation
    assert plan_of(data).fingerprint() != fingerprint


OTHER_VALUES = {
    "max_steps": 7,
    "checkpoint_steps": 2,
    "keep_checkpoints": 9,
    "log_steps": 3,
    "image_steps": 0,
    "horovod_timeline": "t.json",
    "validation_steps": 0,
    "validation_examples": 3,
    "use_best": True,
    "intra_op_threads": 3,
    "inter_op_threads": 2,
    "pin_threads": False,
    "stall_seconds": 9,
    "walltime_minutes": 5.0,
    "walltime_margin_seconds": 1.0,
}


def test_only_what_leaves_the_weights_alone_is_free(data):
    assert set(OTHER_VALUES) == FREE_OPTIONS <= set(TrainConfig.model_fields)
    fingerprint = plan_of(data).fingerprint()
    for name in FREE_OPTIONS:
        assert plan_of(data, TRAIN.model_copy(update={name: OTHER_VALUES[name]})).fingerprint() == fingerprint, name


@pytest.mark.parametrize(
    ("options", "decisive"),
    [({"schedule": "cosine"}, {"max_steps"}), ({"schedule": "cyclic"}, set()), ({"use_best": True}, set())],
)
def test_some_options_are_free_only_without_others(data, options, decisive):
    train = TRAIN.model_copy(update=options)
    fingerprint = plan_of(data, train).fingerprint()
    for name in FREE_OPTIONS:
        other = plan_of(data, train.model_copy(update={name: OTHER_VALUES[name]})).fingerprint()
        assert (other != fingerprint) == (name in decisive), name


def test_records_of_a_volume_that_was_not_given(data, tmp_path):
    other = TrainingData(make_records(tmp_path / "others", volume="b"), data.volumes)
    with pytest.raises(
        RecordError, match=r"others: found records of volume 'b', expected only \['a'\]. Add --volume b="
    ):
        plan_of(other)


def test_too_few_records_for_the_batch(data):
    needed = r"found 5 records, expected at least num_workers × virtual_workers × batch_size = 6"
    for options in ({"batch_size": 6}, {"batch_size": 2, "virtual_workers": 3}):
        with pytest.raises(RecordError, match=needed):
            plan_of(data, TRAIN.model_copy(update=options))


def test_virtual_workers_have_the_lanes_of_as_many_processes(data):
    plan = plan_of(data, TRAIN.model_copy(update={"batch_size": 1, "num_workers": 2, "virtual_workers": 2}))
    assert plan.num_lanes == 4 and [list(plan.lanes(rank)) for rank in (0, 1)] == [[0, 1], [2, 3]]


def test_initial_weights_come_from_the_seed():
    one, other = initial_weights(MODEL, 1), initial_weights(MODEL, 1)
    assert {name: array.shape for name, array in one.items()} == weight_shapes(MODEL)
    np.testing.assert_equal(one, other)
    kernel = one["conv1_a/weights"]
    assert kernel.dtype == np.float32
    assert kernel.std() == pytest.approx(np.sqrt(2 / (27 * 4)), rel=0.1)
    assert not one["conv1_a/biases"].any()
    assert (initial_weights(MODEL, 2)["conv1_a/weights"] != kernel).all()


def test_deep_networks_start_damped():
    deep = initial_weights(MODEL.model_copy(update={"depth": 9}), 1)
    ends = np.stack([deep[f"conv{module}_b/weights"] for module in range(1, 9)])
    assert ends.std() == pytest.approx(np.sqrt(2 / (27 * 4) / 2), rel=0.05)
    assert deep["conv0_b/weights"].std() == pytest.approx(np.sqrt(2 / (27 * 4)), rel=0.1)


def test_the_model_to_start_from_decides_what_is_not_asked_for(tmp_path):
    stored = MODEL.model_copy(update={"image_mean": 120.0, "image_stddev": 30.0})
    weights = initial_weights(stored, 5)
    save_model(tmp_path / "model", Model(stored, weights, {}))
    for wanted in (ModelConfig(), ModelConfig(depth=2, features=4)):
        chosen = choose_model(wanted, str(tmp_path / "model"), 1)
        assert chosen.config == stored
        np.testing.assert_equal(chosen.weights, weights)
    with pytest.raises(ModelError, match=r"--features: found 8, expected 4 as in the model .*model. Omit the option"):
        choose_model(ModelConfig(depth=2, features=8), str(tmp_path / "model"), 1)


def test_a_checkpoint_to_start_from_gives_its_moving_average(tmp_path):
    stored = MODEL.model_copy(update={"image_mean": 120.0, "image_stddev": 30.0})
    last, average = initial_weights(stored, 5), initial_weights(stored, 6)
    shared = {f"{WEIGHTS_PREFIX}{name}": array for name, array in last.items()}
    for step, more in ((1, {}), (2, {f"{AVERAGES_PREFIX}{name}": array for name, array in average.items()})):
        folder = CheckpointFolder(tmp_path, {"model": stored.model_dump(mode="json")}, 3, ProcessGroup())
        folder.save(Checkpoint(step, shared | more, {"positions": np.zeros(2)}))
        chosen = choose_model(ModelConfig(depth=2), str(tmp_path / f"step-{step:08d}"), 1)
        assert chosen.config == stored
        np.testing.assert_equal(chosen.weights, average if more else last)
    (tmp_path / "step-00000002/shared.h5").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="shared.h5: checksum differs from manifest.json"):
        choose_model(ModelConfig(), str(tmp_path / "step-00000002"), 1)


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_training_for_no_steps_does_not_load_tensorflow(data, tmp_path, precision):
    (image, labels), kept = data.volumes["a"], MODEL.model_copy(update={"image_mean": 120.0, "image_stddev": 30.0})
    save_model(tmp_path / "kept", Model(kept, initial_weights(kept, 5), {}))
    arguments = ["train", "--records", data.records, "--volume", f"a={image},{labels}", "--init", f"{tmp_path}/kept"]
    arguments += ["--num-workers", "1", "--batch-size", "1", "--permutable-axes", "--max-steps", "0"]
    arguments += ["--precision", precision, "--out", f"{tmp_path}/model"]
    code = f"import sys; from ffn.cli import main; print(main({arguments!r}), 'tensorflow' in sys.modules)"
    outside = {name: value for name, value in os.environ.items() if name not in dict(RANK_VARIABLES)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=outside)
    assert done.stdout == "0 False\n", done.stderr
    np.testing.assert_equal(load_model(tmp_path / "model").weights, load_model(tmp_path / "kept").weights)


def test_the_options_that_may_change_between_two_runs_are_those_under_four_headings():
    free, heading = set(), ""
    for name in TrainConfig.model_fields:
        heading = TrainConfig.headings.get(name, heading)
        if heading in ("validation", "checkpoints and logs", "threads", "stopping early"):
            free.add(name)
    assert free | {"max_steps"} == FREE_OPTIONS  # as docs/training.md says


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--volume", "a"], "--volume: found 'a', expected NAME=IMAGE,LABELS"),
        (["--volume", "a=r,l"], "--volume: 'a' occurs twice"),
        (["--init", "nowhere"], "nowhere/model.yaml: no such file"),
        (["--fov-size", "4", "5", "7"], "fov_size_zyx: 4 on axis z is even"),
        (["--deltas", "1", "3", "3"], "deltas_zyx: 3 on axis y is not less than half the FOV"),
        (["--batch-size", "0"], "--batch-size: found '0'"),
        (["--precision", "float16"], "--precision: found 'float16'"),
        (["--permutable-axes", "y", "x"], "y and x cannot be exchanged, patches have 9 and 13 voxels"),
        (["--records", "nowhere"], "nowhere: has no index.json"),
        (["--rng-seed", "-1"], "'-1' is not a whole number"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_output(data, tmp_path, monkeypatch, capsys, changes, message):
    for name in dict(RANK_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    image, labels = data.volumes["a"]
    options = ["--records", data.records, "--volume", f"a={image},{labels}", "--out", f"{tmp_path}/model"]
    options += ["--num-workers", "1", "--permutable-axes", "--depth", "1", "--fov-size", "3", "5", "7"]
    try:
        code = main(["train", *options, "--deltas", "1", "2", "3", *changes])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "model").exists()
