"""Augmentation: its rates and ranges, and that it changes nothing else."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.training.config import TrainConfig
from ffn.training.data.examples import distort, draw_shifts, permute_and_reflect, read_shifted

SHAPE = (9, 14, 17)
BLACK = np.float32(-3.5)


def make_image() -> np.ndarray:
    return np.random.default_rng(3).normal(0, 1, SHAPE).astype(np.float32)


def distorted(seed: int = 0, **options) -> np.ndarray:
    image = make_image()
    distort(image, BLACK, TrainConfig(**options), np.random.default_rng(seed))
    assert image.dtype == np.float32
    return image


@pytest.mark.parametrize("reflects", [True, False])
def test_the_chosen_axes_are_permuted_and_all_are_reflected_or_none(reflects):
    array = np.arange(4 * 6 * 6).reshape(4, 6, 6)
    images = set()
    for i in range(200):
        image, labels = permute_and_reflect((array, array + 1), (1, 2), reflects, np.random.default_rng(i))
        np.testing.assert_array_equal(image + 1, labels)
        images.add(image.tobytes())
    expected = {
        np.flip(array.transpose(order), axes).tobytes()
        for order in ((0, 1, 2), (0, 2, 1))
        for axes in (((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)) if reflects else ((),))
    }
    assert images == expected


def test_options_that_are_off_change_and_draw_nothing():
    image, rng = make_image(), np.random.default_rng(1)
    before = rng.bit_generator.state
    distort(image, BLACK, TrainConfig(), rng)
    assert not draw_shifts(9, TrainConfig(), rng).any()
    np.testing.assert_array_equal(image, make_image())
    assert rng.bit_generator.state == before


@pytest.mark.parametrize(
    "options",
    [
        {"contrast_jitter": 0.3},
        {"brightness_jitter": 0.3},
        {"gamma_jitter": 0.3},
        {"blur_rate": 0.3},
        {"missing_slice_rate": 0.3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_the_random_seed_alone_decides(options):
    np.testing.assert_array_equal(distorted(4, **options), distorted(4, **options))
    assert len({distorted(seed, **options).tobytes() for seed in range(5)}) > 1


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


def test_gamma_keeps_order_darkest_and_brightest():
    original, bends = make_image(), []
    order = np.argsort(original, axis=None)
    for seed in range(30):
        image = distorted(seed, gamma_jitter=0.4)
        assert np.all(np.diff(image.ravel()[order]) >= 0)
        np.testing.assert_allclose((image.min(), image.max()), (original.min(), original.max()), atol=1e-5)
        bends.append(image.mean() - original.mean())
    assert min(bends) < -0.1 and max(bends) > 0.1


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
