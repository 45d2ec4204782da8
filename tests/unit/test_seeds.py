"""Seeds: middle of every object, in order, the same on every call."""

import numpy as np

from ffn.inference.seeds import peak_seeds


def two_tubes():
    """Two bright neurites along x with dark membranes around them."""
    image = np.full((30, 40, 60), -1, np.float32)
    image[5:16, 5:16] = 1
    image[18:27, 22:35] = 1
    return image


def test_seeds_lie_in_the_middle_of_objects_in_ascending_order():
    image = two_tubes()
    seeds = peak_seeds(image, (10, 10, 10), 3)
    assert len(seeds) > 2
    assert seeds.tolist() == sorted(seeds.tolist())
    inside = seeds[image[tuple(seeds.T)] > 0]
    assert {10} <= {int(z) for z, y, _ in inside if y < 16}
    assert any(y > 22 for _, y, _ in inside)


def test_seeds_are_reproducible_and_apart():
    image = two_tubes() + np.random.default_rng(0).normal(0, 0.05, (30, 40, 60)).astype(np.float32)
    first, second = peak_seeds(image, (10, 10, 10), 3), peak_seeds(image, (10, 10, 10), 3)
    assert np.array_equal(first, second)
    gaps = np.abs(first[:, None] - first[None]).max(axis=-1)
    assert gaps[np.triu_indices(len(first), 1)].min() > 3


def test_anisotropic_voxels_move_the_distance():
    image = two_tubes()
    assert not np.array_equal(peak_seeds(image, (10, 10, 10), 3), peak_seeds(image, (40, 10, 10), 3))


def test_a_blank_image_has_no_seeds():
    assert peak_seeds(np.zeros((12, 13, 14), np.float32), (10, 10, 10), 3).shape == (0, 3)
