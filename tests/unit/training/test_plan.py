"""The inputs of training: the command line's, normalisation, fingerprint, initial weights, and what does not fit."""

import argparse
import dataclasses

import numpy as np
import pytest

from ffn.config import Mask, ModelConfig
from ffn.errors import ConfigError, ModelError, RecordError, VolumeError
from ffn.geometry import Box
from ffn.model.store import Model, save_model
from ffn.training.checkpoint import Checkpoint, CheckpointFolder
from ffn.training.config import TrainConfig
from ffn.training.data.volumes import open_training_volumes
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import (
    TrainingData,
    ValidationSource,
    choose_model,
    initial_weights,
    make_training_plan,
    parse_masks,
    parse_normalize,
    parse_validation,
    parse_volumes,
    training_data,
    with_normalisation,
)
from ffn.training.step import AVERAGES_PREFIX, WEIGHTS_PREFIX

from .conftest import VOLUME_BOX

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
TRAIN = TrainConfig(num_workers=1, batch_size=2, permutable_axes=())


def plan_of(data, config=TRAIN, rng_seed=1):
    with open_training_volumes(data.volumes) as volumes:
        initial = with_normalisation(choose_model(MODEL, None, rng_seed), volumes, ProcessGroup())
        return make_training_plan(data, volumes, initial, config, rng_seed)


def test_missing_normalisation_is_measured_where_no_mask_hides_all(data, image):
    config = plan_of(data).initial.config
    assert (config.image_mean, config.image_stddev) == pytest.approx((image.mean(), image.std()))
    with open_training_volumes(data.volumes) as volumes:
        with_mean = choose_model(MODEL.model_copy(update={"image_mean": 7.0}), None, 1)
        config = with_normalisation(with_mean, volumes, ProcessGroup()).config
    assert (config.image_mean, config.image_stddev) == pytest.approx((7.0, image.std()))
    with (
        open_training_volumes(data.volumes, {"a": (Mask(box="-99:99,-99:99,-99:99"),)}) as volumes,
        pytest.raises(VolumeError, match="a: .*masked"),
    ):
        with_normalisation(choose_model(MODEL, None, 1), volumes, ProcessGroup())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_image_with_voxels_that_are_not_finite_is_an_error(data, make_volume, image, bad):
    voxels = image.astype(np.float32)
    voxels[3, 4, 5] = bad
    make_volume(voxels)
    with pytest.raises(VolumeError, match="a: .*finite"):
        plan_of(data)


def test_the_fingerprint_does_not_say_how_many_processes_share_the_workers(data):
    shares = [{"num_workers": processes, "virtual_workers": 2 // processes} for processes in (1, 2)]
    one, two = (plan_of(data, TRAIN.model_copy(update=share)).fingerprint() for share in shares)
    assert one == two
    larger_batch = TRAIN.model_copy(update={"num_workers": 1, "batch_size": 4})  # adds in an order of its own
    assert plan_of(data, larger_batch).fingerprint() != one


def test_the_fingerprint_changes_with_options_seed_and_data(data, make_records, make_volume, image):
    fingerprint = plan_of(data).fingerprint()
    assert plan_of(data, TRAIN.model_copy(update={"learning_rate": 0.5})).fingerprint() != fingerprint
    assert plan_of(data, rng_seed=2).fingerprint() != fingerprint
    other_records = TrainingData(make_records("others", counts=(4, 1)), data.volumes)
    assert plan_of(other_records).fingerprint() != fingerprint
    masked = dataclasses.replace(data, masks={"a": (Mask(box="0:1,0:1,0:1"),)})
    assert plan_of(masked).fingerprint() != fingerprint
    assert plan_of(dataclasses.replace(data, normalize={"a": "volume"})).fingerprint() != fingerprint
    of_validation = {"masks": {"b": masked.masks["a"]}, "normalize": {"b": "volume"}}  # decide scores, not weights
    assert plan_of(dataclasses.replace(data, **of_validation)).fingerprint() == fingerprint
    make_volume(np.flip(image, 0).copy())  # same mean and standard deviation
    assert plan_of(data).fingerprint() != fingerprint


def test_records_of_an_unknown_volume_are_refused(data, make_records):
    other = TrainingData(make_records("others", volume="b"), data.volumes)
    with pytest.raises(RecordError, match="others: .*--volume b="):
        plan_of(other)


def test_records_are_checked_and_kept(data, make_records):
    plan = plan_of(data)
    plan.load_records(ProcessGroup())
    assert plan.records.rows.tolist() == [[6, 8, 13, 0]] * 5
    bad = TrainingData(make_records("others", counts=(1, 1, 1, 1), last=(6, 8, 22)), data.volumes)
    with pytest.raises(RecordError):
        plan_of(bad).load_records(ProcessGroup())


def test_a_validation_box_is_held_out_of_the_same_files_under_another_name(data):
    image, labels = data.volumes["a"]
    elsewhere = ValidationSource("another.h5:raw", "another.h5:labels", VOLUME_BOX)
    plan_of(dataclasses.replace(data, validation={"b": elsewhere})).load_records(ProcessGroup())
    file = image.rpartition(":")[0]
    for image_there, labels_there in ((image, "others.h5:a"), (file, "l.h5:a"), ("i.h5:a", labels)):
        b, c = (ValidationSource(image_there, labels_there, box) for box in (Box((0, 0, 3), (1, 1, 4)), VOLUME_BOX))
        with pytest.raises(RecordError, match=f"validation box {VOLUME_BOX}"):
            plan_of(dataclasses.replace(data, validation={"b": b, "c": c})).load_records(ProcessGroup())


def test_the_initial_model_decides_options_that_are_not_set(tmp_path):
    stored = MODEL.model_copy(update={"image_mean": 120.0, "image_stddev": 30.0})
    weights = initial_weights(stored, 5)
    save_model(tmp_path / "model", Model(stored, weights, {}))
    for wanted in (ModelConfig(), ModelConfig(depth=2, features=4)):
        assert choose_model(wanted, str(tmp_path / "model"), 1, remeasures=False).config == stored
        chosen = choose_model(wanted, str(tmp_path / "model"), 1)
        assert chosen.config == MODEL  # whose normalisation is measured
        np.testing.assert_equal(chosen.weights, weights)
    with pytest.raises(ConfigError, match=r"model.features: found 8"):
        choose_model(ModelConfig(depth=2, features=8), str(tmp_path / "model"), 1)
    with pytest.raises(ConfigError, match=r"model.depth: found 3"):
        choose_model(ModelConfig(depth=3), str(tmp_path / "model"), 1)
    given = ModelConfig(image_mean=7.0, fov_size_zyx=(5, 5, 7), deltas_zyx=(1, 1, 2))
    assert choose_model(given, str(tmp_path / "model"), 1).config == given.model_copy(
        update={"depth": 2, "features": 4}
    )
    with pytest.raises(ModelError, match="deltas_zyx: 4"):
        choose_model(ModelConfig(deltas_zyx=(4, 4, 4)), str(tmp_path / "model"), 1)


def test_a_checkpoint_as_initial_model_gives_its_moving_average(tmp_path):
    stored = MODEL.model_copy(update={"image_mean": 120.0, "image_stddev": 30.0})
    last, average = initial_weights(stored, 5), initial_weights(stored, 6)
    shared = {f"{WEIGHTS_PREFIX}{name}": array for name, array in last.items()}
    for step, more in ((1, {}), (2, {f"{AVERAGES_PREFIX}{name}": array for name, array in average.items()})):
        folder = CheckpointFolder(tmp_path, {"model": stored.model_dump(mode="json")}, ProcessGroup(), 3)
        folder.save(Checkpoint(step, shared | more, {"lanes/0": {"position": np.zeros(2)}}))
        chosen = choose_model(ModelConfig(depth=2), str(tmp_path / f"step-{step:08d}"), 1, remeasures=False)
        assert chosen.config == stored
        np.testing.assert_equal(chosen.weights, average if more else last)
    (tmp_path / "step-00000002/shared.h5").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="shared.h5: checksum"):
        choose_model(ModelConfig(), str(tmp_path / "step-00000002"), 1)


VOLUMES = {"a": ("raw.h5:raw", "labels.h5:a")}


def test_a_validation_box_comes_after_image_and_labels():
    found = parse_validation(["a=raw.h5:raw,labels.h5:a,0:9,-5:9,20:30", "b=b.h5,l.h5,1:2,3:4,5:6"], VOLUMES)
    assert found["a"] == ValidationSource("raw.h5:raw", "labels.h5:a", Box((0, -5, 20), (9, 9, 30)))
    assert list(found) == ["a", "b"] and parse_validation([], VOLUMES) == {}


def of_volumes(items):
    return parse_validation(items, VOLUMES)


@pytest.mark.parametrize(
    ("parse", "option", "items"),
    [
        (of_volumes, "--validate", ["a=raw.h5:raw,labels.h5:a"]),
        (of_volumes, "--validate", ["raw.h5,labels.h5,0:9,0:9,0:9"]),
        (of_volumes, "--validate b", ["b=raw.h5,labels.h5,0:9,9:9,0:9"]),
        (of_volumes, "--validate", ["b=r,l,0:9,0:9,0:9"] * 2),
        (of_volumes, "--validate a", ["a=r,l,0:9,0:9,0:9"]),  # other files than those of --volume
        (parse_normalize, "--normalize", ["a=volume", "a=match"]),
        (parse_normalize, "--normalize", ["a=values"]),
        (parse_masks, "--masks", ["m.h5"]),
        (parse_masks, "--masks", ["a=m.h5#values=x"]),
        (parse_volumes, "--volume", ["a=raw.h5"]),
        (parse_volumes, "--volume", ["a=,l"]),
    ],
)
def test_malformed_data_gives_one_line(parse, option, items):
    with pytest.raises(ConfigError, match=f"{option}( a)?: ") as caught:
        parse(items)
    assert "\n" not in str(caught.value)


def test_only_known_volumes_have_masks_and_methods():
    given = argparse.Namespace(records="records", volume=["a=raw.h5:raw,labels.h5:a"], normalize=[], masks=["b=m.h5"])
    assert training_data(given).volumes == VOLUMES
    with pytest.raises(ConfigError, match="--masks: "):
        training_data(given, [])


def test_initial_weights_are_those_of_tf_slim_with_small_last_kernels():
    """Uniform, with a variance of 2 / (fan in + fan out), in every module alike."""
    weights = initial_weights(MODEL.model_copy(update={"depth": 9}), 1, "glorot")
    kernels = np.stack([weights[f"conv{module}_b/weights"] for module in range(1, 9)])
    assert np.abs(kernels).max() == pytest.approx(np.sqrt(6 / (27 * 8)), rel=0.01)
    assert kernels.std() == pytest.approx(np.sqrt(2 / (27 * 8)), rel=0.05)
    assert not weights["conv0_a/biases"].any()
    assert TrainConfig(preset="dong2019").initial == "glorot"
    deep = initial_weights(MODEL.model_copy(update={"depth": 9}), 1)
    ends = np.stack([deep[f"conv{module}_b/weights"] for module in range(1, 9)])
    assert ends.std() == pytest.approx(np.sqrt(2 / (27 * 4) / 2), rel=0.05)
    assert deep["conv0_b/weights"].std() == pytest.approx(np.sqrt(2 / (27 * 4)), rel=0.1)
