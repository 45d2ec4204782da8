"""Which ids of an overlap are the same object."""

import numpy as np
import pytest

from ffn.assembly.overlap import best_of_each_other, needed_voxels, parts_inside
from ffn.config import ReconcileConfig
from ffn.contingency import count_pairs


def table_of(counts):
    """Rows of `counts` are ids 0, 1, … of the first subvolume, columns of the second."""
    voxels = np.array(counts)
    first, second = (ids.ravel().repeat(voxels.ravel()) for ids in np.indices(voxels.shape))
    return count_pairs(first, second).foreground()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[9, 9, 9], [9, 50, 0], [9, 0, 60]], {(1, 1), (2, 2)}),
        ([[0, 0, 0], [0, 50, 40]], {(1, 1)}),  # of two partners, only the better one, with more than half
        ([[0, 0, 0], [0, 50, 50]], set()),  # a tie joins nothing
        ([[0, 0, 0], [0, 4, 0], [0, 0, 60]], {(2, 2)}),  # too few voxels
        ([[0, 0, 0, 0], [0, 40, 30, 30]], set()),  # best, but less than half
        ([[0, 900], [900, 10]], {(1, 1)}),  # background on either side does not count
    ],
)
def test_best_of_each_other_match(counts, expected):
    table = table_of(counts)
    chosen = best_of_each_other(table, np.full(len(table.voxels), 5), ReconcileConfig())
    assert set(map(tuple, table.pairs[chosen].tolist())) == expected


def test_the_tip_of_a_large_segment_joins_nothing_that_a_whole_thin_one_joins():
    voxels = np.array([4096, 32_800]), np.array([4096, 800])  # a neurite of 4 × 4 × 256, and a body with its tip
    needed = needed_voxels(voxels, 48 / 256, ReconcileConfig())
    table = table_of([[0, 0, 0], [0, 768, 0], [0, 0, 800]])
    assert table.pairs[best_of_each_other(table, needed, ReconcileConfig())].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("counts", "whole", "expected"),
    [
        ([[0, 0, 0], [0, 30, 20]], (99, [33, 20]), {(1, 1), (1, 2)}),  # 91 % and all of the parts
        ([[0, 0, 0], [0, 30, 20]], (99, [33, 23]), {(1, 1)}),  # 87 % of the second part
        ([[0, 0, 0], [0, 30, 20]], (99, [90, 60]), set()),  # both continue beyond the overlap
        ([[0, 0, 0], [0, 30, 4]], (99, [30, 4]), {(1, 1)}),  # a part too small to tell
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_parts_that_end_in_the_overlap_match(counts, whole, expected, turned):
    table = table_of(np.transpose(counts) if turned else counts)
    voxels = np.full(len(table.voxels), whole[0]), np.array(whole[1])
    config = ReconcileConfig(min_overlap_voxels=5, min_inside_fraction=0.9)
    chosen = table.pairs[parts_inside(table, voxels[::-1] if turned else voxels, config)]
    assert set(map(tuple, (chosen[:, ::-1] if turned else chosen).tolist())) == expected
    assert not parts_inside(table, voxels, ReconcileConfig()).any()  # off by default
