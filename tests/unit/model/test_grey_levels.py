import numpy as np
import pytest

from ffn.geometry import Box
from ffn.model.tissue import Histogram, count_levels, distance, sample_blocks


def histogram(voxels):
    return Histogram.of_counts(count_levels(voxels))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_mean_and_deviation_are_those_of_the_voxels(dtype):
    voxels = np.random.default_rng(1).integers(0, 200, (7, 11, 13)).astype(dtype)
    found = histogram(voxels)
    assert (found.mean, found.stddev) == pytest.approx((voxels.mean(), voxels.std()))


def test_levels_of_several_volumes_and_of_16_bits_become_one_histogram():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 200, (300,)).astype(np.uint8), rng.integers(50, 250, (700,)).astype(np.uint8)
    both, whole = Histogram.together([histogram(a), histogram(b)]), histogram(np.concatenate([a, b]))
    assert both.levels.tolist() == whole.levels.tolist() and both.counts.tolist() == whole.counts.tolist()
    voxels = np.append(np.random.default_rng(1).normal(4000, 300, 50_000), [65535]).astype(np.uint16)
    fine, coarse = histogram(voxels), histogram(voxels).coarse()
    assert len(fine.levels) > 1000 and len(coarse.levels) <= 256 and coarse.counts.sum() == 50_001
    assert coarse.mean == pytest.approx(fine.mean) and distance(coarse, fine) < 0.05


def test_the_distance_counts_mean_deviation_and_shape():
    levels = np.random.default_rng(1).normal(100, 10, 20_000).clip(0, 255).astype(np.uint8)
    usual = histogram(levels)
    assert distance(usual, usual) == 0
    assert distance(histogram(levels + np.uint8(20)), usual) == pytest.approx(20 / usual.stddev, rel=0.01)
    stretched = histogram((100 + (levels.astype(float) - 100) * 2).round().astype(np.uint8))
    assert distance(stretched, usual) == pytest.approx(1, rel=0.05)
    halves = histogram(np.where(levels < 100, 90, 110).astype(np.uint8))  # same mean and about the same deviation
    assert 0.3 < distance(halves, usual) < 1


def test_the_sample_covers_small_volumes_and_both_ends_of_large_ones():
    small, large = Box((3, 5, 7), (70, 200, 90)), Box((-10, 0, 0), (6390, 64, 700))
    assert sum(block.num_voxels for block in sample_blocks(small)) == small.num_voxels
    blocks = list(sample_blocks(large))
    assert len(blocks) == 5 * 1 * 5 and len(set(blocks)) == len(blocks)
    assert blocks[0].start == large.start and blocks[-1].stop == large.stop
    assert all(large.contains(block) for block in blocks)
