"""Examples: the right voxels, soft labels, and augmentation that keeps image and labels together."""

import re

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError, RecordError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import IGNORED, Placement
from ffn.training.config import TrainConfig
from ffn.training.data.examples import (
    ExampleMaker,
    Record,
    distance,
    distort,
    draw_shifts,
    moves,
    patch_size,
    read_shifted,
)
from ffn.training.data.volumes import TrainingVolume

from ....volumes import write_volume

MODEL = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)  # patch 5, 9, 13
PLAIN = TrainConfig(permutable_axes=())


def test_an_example_is_the_normalised_patch_with_soft_labels(volume):
    center = (8, 10, 18)
    example = ExampleMaker({"v": volume}, MODEL, PLAIN, reflects=False).make(
        Record(center, "v"), np.random.default_rng(0)
    )
    box = Box((6, 6, 12), (11, 15, 25))  # the centre ± (2, 4, 6)
    assert example.image().shape == example.labels().shape == patch_size(MODEL, PLAIN) == (5, 9, 13)
    assert example.image().dtype == example.labels().dtype == np.float32
    np.testing.assert_allclose(example.image(), (volume.read_image(box) - 100.0) / 20.0, rtol=1e-6)
    same_object = volume.read_labels(box) == volume.read_labels(box)[2, 4, 6]
    assert 0 < same_object.mean() < 1
    np.testing.assert_array_equal(example.labels(), np.where(same_object, np.float32(0.95), np.float32(0.05)))


@pytest.mark.parametrize(
    ("policy", "shuffle", "number"), [("fixed", "distance", 26), ("fixed", "all", 26), ("faces", "distance", 6)]
)
def test_moves_are_the_neighbours_in_random_order(volume, policy, shuffle, number):
    maker = ExampleMaker(
        {"v": volume}, MODEL, PLAIN.model_copy(update={"fov_policy": policy, "shuffle_moves": shuffle})
    )
    orders = [maker.make(Record((8, 10, 18), "v"), np.random.default_rng(i)).moves_zyx for i in range(9)]
    assert len(set(orders)) >= 4
    for order in orders:
        assert len(set(order)) == len(order) == number
        assert all(move != (0, 0, 0) and np.isin(np.abs(move), [(0, 0, 0), (1, 2, 3)]).all() for move in order)
        lengths = [sum(map(abs, move)) for move in order]
        assert (lengths == sorted(lengths)) == ((policy, shuffle) == ("fixed", "distance"))
    assert moves((0, 4, 4), "faces") == [(0, -4, 0), (0, 4, 0), (0, 0, -4), (0, 0, 4)]


def check(maker, *centers, name="v"):
    maker.check("r.gz", np.array([(8, 10, 18), *centers]), np.array(["v", *[name] * len(centers)]))


@pytest.mark.parametrize("center", [(5, 10, 18), (8, 4, 18), (8, 10, 28), (8, 10, 10)])
def test_a_record_whose_patch_leaves_image_or_labels_is_named(volume, center):
    maker = ExampleMaker({"v": volume}, MODEL, PLAIN)
    check(maker, (8, 10, 20))
    expected = re.escape(f"r.gz: record 2 of 3 has center (z, y, x) = {center} in volume v, whose patch ")
    with pytest.raises(RecordError, match=rf"{expected}.*\(2, 4, 6\)"):
        check(maker, center, (0, 0, 0))


def test_every_record_that_passes_the_check_makes_an_example(volume):
    maker = ExampleMaker({"v": volume}, MODEL, PLAIN, {"v": [Box((10, 14, 24), (14, 20, 34))]})
    passed = 0
    for center in np.ndindex(16, 24, 40):
        try:
            maker.check("r.gz", np.array([center]), np.array(["v"]))
        except RecordError:
            continue
        passed += 1
        assert maker.make(Record(center, "v"), np.random.default_rng(0)).image().shape == (5, 9, 13)
    assert passed > 20


def test_without_defects_only_orientation_and_moves_are_drawn(volume):
    """Checkpoints of the same revision rely on this random stream."""
    model = ModelConfig(fov_size_zyx=(3, 5, 5), deltas_zyx=(1, 2, 2), image_mean=100, image_stddev=20)
    maker = ExampleMaker({"v": volume}, model, TrainConfig(permutable_axes=("y", "x")))
    box = Box((6, 6, 14), (11, 15, 23))
    for seed in range(20):
        rng, reference = np.random.default_rng(seed), np.random.default_rng(seed)
        example = maker.make(Record((8, 10, 18), "v"), rng)
        order, (z, y, x) = reference.permutation((1, 2)), reference.random(3) < 0.5
        for array, voxels in (
            (example.image(), (volume.read_image(box) - np.float32(100)) / np.float32(20)),
            (example.labels(), np.where(volume.read_labels(box) == 1, np.float32(0.95), np.float32(0.05))),
        ):
            expected = voxels.transpose(0, *order)[:: -1 if z else 1, :: -1 if y else 1, :: -1 if x else 1]
            np.testing.assert_array_equal(array, expected)
        order = [moves(model.deltas_zyx)[i] for i in reference.permutation(26)]
        assert example.moves_zyx == tuple(sorted(order, key=distance))
        assert rng.bit_generator.state == reference.bit_generator.state


def test_the_weight_of_unlabelled_voxels_is_flipped_with_the_image(volume):
    center = Record((8, 10, 14), "v")  # its patch has background up to x = 10
    train = TrainConfig(unlabelled_weight=0.25, permutable_axes=())
    maker = ExampleMaker({"v": volume}, MODEL, train)
    turned = set()
    for seed in range(8):
        example = maker.make(center, np.random.default_rng(seed))
        background = np.zeros(13, bool)
        background[:2] = True  # x = 8 and 9
        turned.add(flipped := bool(example.loss_weight()[0, 0, -1] == 0.25))
        expected = np.where(background[:: -1 if flipped else 1], np.float32(0.25), np.float32(1))
        np.testing.assert_array_equal(example.loss_weight(), np.broadcast_to(expected, (5, 9, 13)))
        assert example.labels()[0, 0, 1 if flipped else -2] == np.float32(0.95)
    assert turned == {False, True}


def test_ignored_voxels_have_no_weight_whatever_that_of_unlabelled_ones(volume, monkeypatch):
    """The patch has background up to x = 10, and then the object."""
    read = volume.read_labels
    monkeypatch.setattr(volume, "read_labels", lambda box: ignore(read(box), box))

    def ignore(labels, box):
        labels = labels.astype(np.uint64)
        labels[0, :, 9 - box.start[2]] = IGNORED
        labels[1, :, 12 - box.start[2]] = IGNORED
        return labels

    for weight in (1, 0.25):
        train = TrainConfig(unlabelled_weight=weight, permutable_axes=())
        example = ExampleMaker({"v": volume}, MODEL, train, reflects=False).make(
            Record((8, 10, 14), "v"), np.random.default_rng(0)
        )
        expected = np.ones((5, 9, 13), np.float32)
        expected[:, :, :2] = weight
        expected[0, :, 1] = expected[1, :, 4] = 0
        np.testing.assert_array_equal(example.loss_weight(), expected)


def test_grey_levels_that_are_looked_up_have_the_bits_of_those_that_are_computed(volume):
    train = PLAIN.model_copy(update={"contrast_jitter": 0.5, "brightness_jitter": 0.5})
    maker, images = ExampleMaker({"v": volume}, MODEL, train), []
    for maker._has_levels in (True, False):
        examples = [maker.make(Record((8, 10, 21), "v"), np.random.default_rng(seed)) for seed in range(3)]
        assert {example.grey.dtype for example in examples} == {np.dtype(np.uint8 if maker._has_levels else np.float32)}
        images.append([example.image() for example in examples])
    np.testing.assert_array_equal(*images)


def test_image_and_labels_are_misaligned_together(volume, tmp_path):
    """An image that equals its labels still does, voxel by voxel, and the central slice does not move."""
    model = MODEL.model_copy(update={"image_mean": 0.0, "image_stddev": 1.0})
    shifted = PLAIN.model_copy(update={"misaligned_slice_rate": 0.5})
    record, changed = Record((8, 10, 21), "v"), 0
    ids, placement = volume.read_labels(volume.box), Placement(volume.box, (30.0, 8.0, 8.0))
    small = write_volume(f"{tmp_path}/small.h5:ids", ids.astype(np.uint8), placement)  # a type that both may have
    with open_volume(small) as truth:
        same = {"v": TrainingVolume("v", truth, truth)}
        still = ExampleMaker(same, model, PLAIN, reflects=False).make(record, np.random.default_rng(0))
        for seed in range(10):
            example = ExampleMaker(same, model, shifted, reflects=False).make(record, np.random.default_rng(seed))
            np.testing.assert_array_equal(example.labels() > 0.5, example.image() == 2)
            np.testing.assert_array_equal(example.labels()[2], still.labels()[2])
            changed += not np.array_equal(example.labels(), still.labels())
    assert changed > 4


def test_no_example_may_overlap_the_validation_box(volume):
    record = (8, 10, 18)  # its patch ends at x = 25
    for box, is_shown in ((Box((4, 1, 25), (14, 20, 34)), True), (Box((10, 14, 24), (14, 20, 34)), False)):
        maker = ExampleMaker({"v": volume}, MODEL, PLAIN, {"v": [Box((0, 0, 0), (1, 1, 1)), box]})
        if is_shown:
            check(maker, record)
        else:
            with pytest.raises(RecordError, match="10:14,14:20,24:34"):
                check(maker, record)
    shifted = PLAIN.model_copy(update={"misaligned_slice_rate": 0.5})
    adjacent = ExampleMaker({"v": volume}, MODEL, shifted, {"v": [Box((4, 1, 25), (14, 20, 34))]})
    with pytest.raises(RecordError, match="validation box 4:14,1:20,25:34"):
        check(adjacent, record)


def test_axes_of_another_patch_or_voxel_size_cannot_be_exchanged(volume):
    with pytest.raises(ConfigError, match="permutable_axes: .*13 .*9"):
        ExampleMaker({"v": volume}, MODEL, TrainConfig(permutable_axes=("x", "y")))
    cubic = ModelConfig(fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)
    ExampleMaker({"v": volume}, cubic, TrainConfig(permutable_axes=("y", "x")))
    with pytest.raises(ConfigError, match="permutable_axes: .*30 .*8"):
        ExampleMaker({"v": volume}, cubic, TrainConfig())


SHAPE = (9, 14, 17)
BLACK = np.float32(-3.5)


def make_image() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 1, SHAPE).astype(np.float32)


def distorted(seed: int = 0, **options) -> np.ndarray:
    image = make_image()
    distort(image, BLACK, TrainConfig(**options), np.random.default_rng(seed))
    assert image.dtype == np.float32
    return image


def test_missing_slices_are_black_at_their_rate_but_never_the_central_one():
    blank = np.zeros(SHAPE[0])
    for seed in range(400):
        image = distorted(seed, missing_slice_rate=0.25)
        is_black = (image == BLACK).all(axis=(1, 2))
        np.testing.assert_array_equal(image[~is_black], make_image()[~is_black])
        blank += is_black
    assert blank[4] == 0
    assert np.all(np.abs(np.delete(blank, 4) / 400 - 0.25) < 0.08)


def test_blurred_slices_lose_detail_along_y_and_x_only():
    image = distorted(2, blur_rate=0.5)
    changed = (image != make_image()).any(axis=(1, 2))
    assert 0 < changed.sum() < SHAPE[0]
    spread = image.std(axis=(1, 2))
    assert np.all(spread[changed] < 0.4) and np.all(spread[~changed] > 0.8)
    alone = distorted(2, blur_rate=1.0)  # blurring a slice does not depend on its neighbours
    np.testing.assert_array_equal(image[changed], alone[changed])


def test_contrast_and_brightness_are_a_linear_map_within_their_ranges():
    gains, offsets = [], []
    for seed in range(200):
        image = distorted(seed, contrast_jitter=0.2, brightness_jitter=0.5)
        gain, offset = np.polyfit(make_image().ravel(), image.ravel(), 1)
        np.testing.assert_allclose(image, make_image() * gain + offset, atol=1e-5)
        gains.append(gain)
        offsets.append(offset)
    for values, low, high in ((gains, 0.8, 1.2), (offsets, -0.5, 0.5)):
        assert low <= min(values) < low + 0.05 and high - 0.05 < max(values) <= high


def test_slices_beyond_a_jump_share_its_shift_and_the_central_one_stays():
    config = TrainConfig(misaligned_slice_rate=0.2)
    jumps, largest = np.zeros(20), set()
    for seed in range(500):
        shifts = draw_shifts(21, config, np.random.default_rng(seed))
        assert not shifts[10].any()
        jumps += np.diff(shifts, axis=0).any(axis=1)
        largest.update(shifts.ravel().tolist())
    assert largest == set(range(-4, 5))
    # one jump in 9 × 9 is invisible, because it draws the shift of the slice before it
    assert np.all(np.abs(jumps / 500 - 0.2 * 80 / 81) < 0.07)


def test_shifted_slices_are_read_from_outside_the_box():
    inside = Box((2, 3, 4), (8, 13, 16))
    voxels = np.random.default_rng(0).integers(0, 255, inside.shape)

    def read(box: Box) -> np.ndarray:
        assert inside.contains(box)
        return voxels[box.slices(inside.start)]

    box = Box((3, 5, 8), (6, 11, 13))
    shifts = np.array([(-2, 3), (0, 0), (2, -1)])
    found = read_shifted(read, inside, box, shifts)
    for z, (dy, dx) in enumerate(shifts):
        np.testing.assert_array_equal(found[z], read(box.shift((0, int(dy), int(dx))))[z])
    beyond = read_shifted(read, inside, box, np.array([(0, 0), (4, 0), (0, -6)]))
    np.testing.assert_array_equal(beyond[1, -2:], np.stack([beyond[1, -3]] * 2))  # the outermost row again
    np.testing.assert_array_equal(beyond[2, :, :2], np.stack([beyond[2, :, 2]] * 2, axis=1))
    np.testing.assert_array_equal(beyond[1, :4], read(Box((4, 9, 8), (5, 13, 13)))[0])
