import numpy as np
import pytest

from ffn.sampling.shuffle import permutation_keys, permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 31, 32, 33, 1000])
def test_every_tweak_selects_a_permutation(size):
    keys = permutation_keys(np.random.default_rng(size))
    images = [permute(np.arange(size), size, keys, tweak) for tweak in range(5)]
    for image in images:
        assert sorted(image.tolist()) == list(range(size))
    mixed = permute(np.arange(size), size, keys, np.arange(size) % 5)
    assert all(mixed[i] == images[i % 5][i] for i in range(size))


def test_permutations_reach_every_order_of_three_and_leave_no_trend():
    orders = {tuple(permute(np.arange(3), 3, permutation_keys(np.random.default_rng(seed)))) for seed in range(100)}
    assert len(orders) == 6
    image = permute(np.arange(30_000), 30_000, permutation_keys(np.random.default_rng(0)))
    assert abs(np.corrcoef(np.arange(30_000), image)[0, 1]) < 0.02
    assert abs(np.corrcoef(image[:-1], image[1:])[0, 1]) < 0.02
    assert np.count_nonzero(image == np.arange(30_000)) < 10
