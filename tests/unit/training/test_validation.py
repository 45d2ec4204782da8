"""Validation examples and scores: chosen once, apart from the number of processes; the best weights are kept."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import load_model
from ffn.training.config import TrainConfig
from ffn.training.data.examples import patch_size
from ffn.training.data.volumes import open_training_volumes
from ffn.training.monitoring.best import FOLDER, BestModel, load_best
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.validation import Validation
from ffn.training.validation_set import ValidationBox, draw_records, make_validation_set

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=50)
TRAIN = TrainConfig(validation_examples=7, batch_size=2, contrast_jitter=0.5, missing_slice_rate=1.0)
PATCH = (5, 7, 11)
VOLUME, BOX = Box.parse("10:30,0:24,5:45"), Box.parse("12:28,2:20,10:40")


class Member(ProcessGroup):
    """One process of several, whose shares are put together by the test."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def gather(self, item):
        return self.shares if isinstance(item, np.ndarray) else [item]


@pytest.fixture
def volumes(tmp_path):
    """Two volumes with noise as image and a body in each; that of the second fills little."""
    specs = {}
    for number, name in enumerate("ab"):
        rng = np.random.default_rng(number)
        labels = np.zeros(VOLUME.shape, np.uint64)
        labels[:, 8 : 16 - 7 * number, 12:30] = 7
        image = rng.integers(0, 255, VOLUME.shape).astype(np.uint8)
        for dataset, voxels in (("raw", image), ("labels", labels)):
            spec = f"{tmp_path}/{name}-{dataset}.h5:{dataset}"
            with create_volume(spec, voxels.dtype, Placement(VOLUME, (10.0, 10.0, 10.0))) as writer:
                writer.write(VOLUME, voxels)
        specs[name] = (f"{tmp_path}/{name}-raw.h5:raw", f"{tmp_path}/{name}-labels.h5:labels")
    with open_training_volumes(specs) as opened:
        yield opened


@pytest.fixture
def places(volumes):
    return {name: ValidationBox(volume, BOX) for name, volume in volumes.items()}


def test_records_are_object_voxels_in_the_box_whose_patch_lies_in_the_volume(places):
    assert patch_size(MODEL, TRAIN) == PATCH
    records = draw_records(places, PATCH, 10_000, rng_seed=3)
    assert len(set(records)) == len(records)
    for name, place in places.items():
        centers = {record.center_zyx for record in records if record.volume == name}
        labels = place.volume.read_labels(place.volume.box)
        inside = BOX.intersect(place.volume.box.grow((-2, -3, -5)))
        expected = {
            tuple(map(int, voxel))
            for voxel in np.argwhere(labels > 0) + place.volume.box.start
            if inside.contains(Box(tuple(voxel), tuple(voxel + 1)))
        }
        assert centers == expected and len(centers) > 50
    few = draw_records(places, PATCH, 40, rng_seed=3)
    assert set(few) <= set(records) and few == draw_records(places, PATCH, 40, rng_seed=3)
    assert few != draw_records(places, PATCH, 40, rng_seed=4) and {record.volume for record in few} == {"a", "b"}


def test_the_choice_does_not_depend_on_blocks_in_memory(places, monkeypatch):
    whole = draw_records(places, PATCH, 10_000, rng_seed=3)
    monkeypatch.setattr("ffn.training.validation_set.BLOCK_ZYX", (3, 4, 5))
    assert set(draw_records(places, PATCH, 10_000, rng_seed=3)) == set(whole)


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ("9:28,2:20,10:40", "--validate a: 9:28,2:20,10:40 leaves the labelled part of the image, 10:30,0:24,5:45"),
        ("12:28,2:20,40:45", "--validate a: 12:28,2:20,40:45 has no voxel whose patch of .5, 7, 11. lies in"),
        ("12:28,0:6,10:40", "--validate: no patch of .5, 7, 11. voxels in a 12:28,0:6,10:40 is centred on an object"),
    ],
)
def test_boxes_of_no_use_are_one_line(volumes, box, message):
    places = {"a": ValidationBox(volumes["a"], Box.parse(box))}
    with pytest.raises(ConfigError, match=message):
        make_validation_set(places, MODEL, TRAIN, 1, ProcessGroup())


def test_what_lies_outside_of_the_box_is_not_scored(volumes):
    places = {name: ValidationBox(volume, Box.parse("14:17,2:20,10:40")) for name, volume in volumes.items()}
    examples = make_validation_set(places, MODEL, TRAIN, 1, ProcessGroup())
    for number, record in enumerate(examples.records):
        weights = examples.example(number).loss_weight
        z = np.arange(weights.shape[0]) + record.center_zyx[0] - PATCH[0] // 2
        assert np.array_equal(weights.max(axis=(1, 2)), (z >= 14) & (z < 17))


def test_the_best_weights_need_a_validation(places):
    assert make_validation_set({}, MODEL, TRAIN, 1, ProcessGroup()) is None
    with pytest.raises(ConfigError, match="train.use_best: found true without a validation"):
        make_validation_set({}, MODEL, TRAIN.model_copy(update={"use_best": True}), 1, ProcessGroup())


def test_examples_are_not_augmented(places):
    examples = make_validation_set(places, MODEL, TRAIN, 1, ProcessGroup())
    record, example = examples.records[0], examples.example(0)
    box = Box.from_shape(PATCH, tuple(c - n // 2 for c, n in zip(record.center_zyx, PATCH, strict=True)))
    raw = places[record.volume].volume.read_image(box)
    np.testing.assert_allclose(example.image, (raw.astype(np.float32) - 100) / 50, rtol=1e-6)
    np.testing.assert_array_equal(example.image, examples.example(0).image)
    assert example.moves_zyx == examples.example(0).moves_zyx


def forward(batch):
    """Stand-in for the network: bright voxels belong to the object; the loss is the mean grey level."""
    return batch.pom_logit + 4 * batch.image, batch.image.mean((1, 2, 3))


@pytest.mark.parametrize("size", [2, 3, 10])
def test_scores_are_the_same_for_any_number_of_processes(places, size):
    examples = make_validation_set(places, MODEL, TRAIN, 1, ProcessGroup())
    whole = Validation(examples, MODEL, TRAIN, ProcessGroup()).run(forward, 30)
    groups = [Member(rank, size) for rank in range(size)]
    shares = [Validation(examples, MODEL, TRAIN, group)._walk_share(forward) for group in groups]
    for group in groups:
        group.shares = shares
        row = Validation(examples, MODEL, TRAIN, group).run(forward, 30)
        assert {**row, "validation_seconds": 0} == {**whole, "validation_seconds": 0}
    assert whole["examples"] == 7 and whole["fovs"] > 7 and 0 < whole["f1"] < 1
    assert whole["step"] == 30


def weights(value):
    return {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(MODEL).items()}


def offer(best, step, f1):
    best.offer({"step": step, "f1": f1}, lambda: weights(step))


def test_the_best_model_is_kept_the_latest_of_equal_ones(tmp_path):
    best = BestModel(tmp_path, MODEL, 0, False)
    for step, f1 in ((0, 0.0), (10, 0.0), (20, 0.5), (30, float("nan")), (40, 0.25)):
        offer(best, step, f1)
        assert load_best(tmp_path)[0] == {0: 0, 10: 10}.get(step, 20)
    step, found = load_best(tmp_path)
    assert all((array == 20).all() for array in found.values())
    assert load_model(tmp_path / FOLDER).provenance["inputs"] == {"step": "20", "validation_f1": "0.5"}


@pytest.mark.parametrize(
    ("step", "is_comparable", "kept"), [(30, True, True), (20, True, True), (10, True, False), (30, False, False)]
)
def test_a_resumed_training_knows_the_best_of_its_own_past(tmp_path, step, is_comparable, kept):
    offer(BestModel(tmp_path, MODEL, 0, False), 20, 0.5)
    resumed = BestModel(tmp_path, MODEL, step, is_comparable)
    assert (tmp_path / FOLDER).exists() == kept
    offer(resumed, 40, 0.25)
    assert load_best(tmp_path)[0] == (20 if kept else 40)
