"""Validation examples: where they lie, that they stay the same, and scores for any number of processes."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.volume import IGNORED
from ffn.model.normalize import Normalisation
from ffn.training.config import TrainConfig
from ffn.training.data.examples import patch_size
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.validation import Validation, ValidationBox, draw_records, make_validation
from ffn.training.walk import NUM_COUNTS

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=50)
TRAIN = TrainConfig(validation_examples=7, batch_size=2, contrast_jitter=0.5, missing_slice_rate=1.0)
PATCH, RADIUS = (5, 7, 11), (2, 3, 5)


def drawn(boxes, count, rng_seed):
    """Return the records that are drawn."""
    return [record for record, _ in draw_records(boxes, PATCH, RADIUS, count, rng_seed)]


def test_thin_objects_are_drawn_as_often_as_thick_ones_and_count_as_much(monkeypatch):
    """As in training, where a large body would otherwise decide which weights are the best."""
    labels = np.zeros((60, 60, 60), np.uint64)
    labels[5:55, 5:55, 30:], labels[10:50:10, 10:50:10, 5:25] = 1, 2  # thin rods have 0.4 % of the voxels
    box = Box.from_shape(labels.shape)
    volume = SimpleNamespace(box=box, read_labels=lambda box: labels[box.slices()])
    found = draw_records({"a": ValidationBox(volume, box)}, (9, 9, 9), (4, 4, 4), 120, 1)
    of_label = Counter(int(labels[record.center_zyx]) for record, _ in found)
    assert len(found) > 100 and of_label[2] > 10
    assert {size for record, size in found if labels[record.center_zyx] == 2} == {0}
    assert {size for record, size in found if labels[record.center_zyx] == 1} == {1, 2}
    validation = Validation([], (0, 2, 2), b"", MODEL, TRAIN, ProcessGroup())
    results = np.zeros((3, 3 + NUM_COUNTS))
    results[:, 1], results[:, 3:] = 1, [(1, 1, 0, 1), (90, 0, 0, 0), (10, 0, 0, 0)]  # F1 0.5 of thin, 1 of thick
    monkeypatch.setattr(Validation, "_walk_share", lambda *_: results)
    row = validation.run(forward, 10)
    assert (row["f1_thin"], row["f1_thick"], row["f1"]) == (0.5, 1.0, 0.75) and np.isnan(row["f1_middle"])


def test_records_are_object_voxels_in_the_box_whose_patch_lies_in_the_volume(validation_boxes):
    assert patch_size(MODEL, TRAIN) == PATCH
    records = drawn(validation_boxes, 10_000, 3)
    assert len(set(records)) == len(records)
    for name, (volume, box) in validation_boxes.items():
        centers = {record.center_zyx for record in records if record.volume == name}
        labels = volume.read_labels(volume.box)
        inside = box.intersect(volume.box.grow((-2, -3, -5)))
        expected = {
            tuple(map(int, voxel))
            for voxel in np.argwhere(labels > 0) + volume.box.start
            if inside.contains(Box(tuple(voxel), tuple(voxel + 1)))
        }
        assert centers == expected and len(centers) > 50
    few = drawn(validation_boxes, 40, 3)
    assert set(few) <= set(records) and few == drawn(validation_boxes, 40, 3) != drawn(validation_boxes, 40, 4)
    assert {record.volume for record in few} == {"a", "b"}


def test_of_many_blocks_some_are_drawn(validation_boxes, monkeypatch):
    everywhere = drawn(validation_boxes, 10_000, 3)
    monkeypatch.setattr("ffn.training.validation.BLOCK_ZYX", (4, 4, 4))
    monkeypatch.setattr("ffn.training.validation.MAX_BLOCKS", 40)
    assert 0 < len(some := drawn(validation_boxes, 10_000, 3)) <= 40 * 64 and set(some) < set(everywhere)


def test_no_record_is_an_ignored_voxel(validation_boxes, monkeypatch):
    boxes = {"a": validation_boxes["a"]}
    volume, _ = boxes["a"]
    read = volume.read_labels
    everywhere = drawn(boxes, 10_000, 3)

    def ignoring_even_z(box):
        z = np.arange(box.start[0], box.stop[0])[:, None, None]
        return np.where(z % 2 == 0, IGNORED, read(box))

    monkeypatch.setattr(volume, "read_labels", ignoring_even_z)
    left = drawn(boxes, 10_000, 3)
    assert set(left) == {record for record in everywhere if record.center_zyx[0] % 2}


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ("9:28,2:20,10:40", "--validate a: 9:28,2:20,10:40 leaves the labelled part of the image, 10:30,0:24,5:45"),
        ("12:28,2:20,40:45", "--validate a: 12:28,2:20,40:45 has no voxel whose patch of .5, 7, 11. lies in"),
        ("12:28,0:6,10:40", "--validate: no patch of .5, 7, 11. voxels in a 12:28,0:6,10:40 is centred on an object"),
    ],
)
def test_unusable_boxes_give_one_line(validation_boxes, box, message):
    boxes = {"a": ValidationBox(validation_boxes["a"].volume, Box.parse(box))}
    with pytest.raises(ConfigError, match=message):
        make_validation(boxes, MODEL, TRAIN, 1, ProcessGroup())


def test_voxels_outside_the_box_are_not_scored_and_examples_not_augmented(validation_boxes):
    slab = Box.parse("14:17,2:20,10:40")
    boxes = {name: ValidationBox(volume, slab) for name, (volume, _) in validation_boxes.items()}
    validation = make_validation(boxes, MODEL, TRAIN, 1, ProcessGroup())
    for record, example in zip(drawn(boxes, 7, 1), validation.examples, strict=True):
        weights = example.loss_weight()
        z = np.arange(weights.shape[0]) + record.center_zyx[0] - PATCH[0] // 2
        assert np.array_equal(weights.max(axis=(1, 2)), (z >= 14) & (z < 17))
    first, again = (make_validation(validation_boxes, MODEL, TRAIN, 1, ProcessGroup()).examples[0] for _ in range(2))
    record = drawn(validation_boxes, 7, 1)[0]
    box = Box.from_shape(PATCH, tuple(c - n // 2 for c, n in zip(record.center_zyx, PATCH, strict=True)))
    raw = validation_boxes[record.volume].volume.read_image(box)
    np.testing.assert_allclose(first.image(), (raw.astype(np.float32) - 100) / 50, rtol=1e-6)
    np.testing.assert_array_equal(first.image(), again.image())
    assert first.moves_zyx == again.moves_zyx


def test_scores_of_another_normalisation_cannot_be_compared(validation_boxes):
    def digest():
        return make_validation(validation_boxes, MODEL, TRAIN, 1, ProcessGroup()).digest

    as_ever = digest()
    volume = validation_boxes["a"].volume
    volume.normalisation = Normalisation.of_model(MODEL)
    assert digest() == as_ever  # else trainings would forget their validations
    volume.normalisation = Normalisation(90.0, 50.0)
    assert digest() != as_ever


def forward(batch):
    """Stand-in for the network: bright voxels belong to the object, the loss is the mean grey level."""
    return batch.pom_logit + 4 * batch.image, batch.image.mean((1, 2, 3))


@pytest.mark.parametrize("size", [2, 3, 10])
def test_scores_are_the_same_for_any_number_of_processes(validation_boxes, run_processes, size):
    def validate(group):
        row = make_validation(validation_boxes, MODEL, TRAIN, 1, group).run(forward, 30)
        assert row.pop("validation_seconds") > 0
        return row

    alone = validate(ProcessGroup())
    assert run_processes(size, validate) == [alone] * size
    assert alone["examples"] == 7 and alone["fovs"] > 7 and 0 < alone["f1"] < 1
    assert alone["step"] == 30
