"""Intervals of scores come from a bootstrap over bodies."""

import numpy as np
import pytest

from ffn.contingency import ContingencyTable, count_pairs
from ffn.evaluation.scores import CONVENTIONS, intervals, score


def many_bodies(count, split_every):
    """Bodies of 1000 voxels, some of which are cut into halves; each has a segment of its own."""
    ids = np.arange(1, count + 1)
    is_split = ids % split_every == 0
    bodies, segments = np.repeat(ids, 2), np.arange(2 * count) + 1
    voxels = np.where(np.repeat(is_split, 2), 500, np.tile([1000, 0], count))
    rows = voxels > 0
    return ContingencyTable(bodies[rows].astype(np.uint64), segments[rows].astype(np.uint64), voxels[rows])


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_an_interval_holds_the_score_and_the_seed_fixes_it(random_volumes, convention):
    table = count_pairs(*random_volumes)
    limits = intervals(table, convention, 1)
    for name, value in score(table, convention).items():
        low, high = limits[name]
        assert low <= value <= high and low < high
    assert intervals(table, convention, 1) == limits != intervals(table, convention, 2)


def test_the_interval_is_that_of_a_mean_over_equal_bodies():
    """Every fourth of 400 bodies is split into halves, which costs it one bit."""
    low, high = intervals(many_bodies(400, 4), "all", 1)["voi"]
    error = np.sqrt(0.25 * 0.75 / 400)
    assert (low, high) == pytest.approx((0.25 - 1.96 * error, 0.25 + 1.96 * error), abs=0.008)
    few = intervals(many_bodies(40, 4), "all", 1)["voi"]
    assert few[1] - few[0] > 2.5 * (high - low)


def test_bodies_without_a_segment_count_only_where_the_convention_counts_them():
    table = ContingencyTable(*(np.array(ids, np.uint64) for ids in ([1, 2, 3], [7, 0, 0])), np.array([10, 10, 10]))
    assert intervals(table, "all", 1)["voi"][1] > 0
    assert intervals(table, "foreground", 1)["voi"] is None  # one body cannot vary


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_where_nothing_is_segmented_limits_are_numbers_around_the_score(convention):
    table = ContingencyTable(np.array([1, 2], np.uint64), np.zeros(2, np.uint64), np.array([5, 6]))
    limits, values = intervals(table, convention, 1), score(table, convention)
    for name, value in values.items():
        assert limits[name] is None if value is None else limits[name][0] <= value <= limits[name][1], name
