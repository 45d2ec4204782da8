"""The cost of reaching an F1."""

import math

import numpy as np
import pytest

from ffn.studies.best import BestRuns
from ffn.studies.efficiency import _figure as draw_costs
from ffn.studies.efficiency import costs_to_reach, steps_to_reach
from ffn.studies.pages import COLOURS

from .conftest import run_of


def test_a_target_is_reached_from_where_the_curve_stays_above_it():
    assert steps_to_reach(run_of([0.6, 0.2, 0.5, 0.7]), 0.5, 400) == 300  # the first value was luck
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7, 0.4]), 0.5, 300))
    assert steps_to_reach(run_of([0.6, 0.7]), 0.5, 200) == 100
    assert math.isnan(steps_to_reach(run_of([]), 0.5, 0))
    assert steps_to_reach(run_of([0.2, 0.6, np.nan]), 0.5, 300) == 200  # no walk ended at the end
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7]), 0.5, 300))  # diverged


def test_costs_are_relative_to_the_fewest_workers_that_reach_the_target():
    never, slow, fast = ([0.1] * 8, [0.1] * 7 + [0.6], [0.1, 0.6] + [0.6] * 6)
    runs = {n: [run_of(f1, n, seed=seed) for seed in (1, 2)] for n, f1 in ((1, never), (2, slow), (4, fast))}
    cost = costs_to_reach(BestRuns(runs, {}, {1: 1.0, 2: 1.0, 4: 1.2}, "aries"), 0.5)
    assert cost["workers"] == [2, 4] and cost["steps"] == [800, 200]
    assert cost["relative_time"] == pytest.approx([1.0, 0.25 * 1.2])
    assert cost["relative_fovs"] == pytest.approx([1.0, 0.5])
    assert cost["relative_time_stddev"] == [0.0, 0.0]
    assert cost["failed"] == {1: 2}


def test_more_targets_than_colours_can_be_drawn():
    targets = np.linspace(0.1, 0.5, len(COLOURS) + 1).tolist()
    runs = {1: [run_of([0.6] * 2, seed=seed) for seed in (1, 2)]}
    best = BestRuns(runs, {}, {1: 1.0}, "aries")
    assert len(draw_costs({target: costs_to_reach(best, target) for target in targets}, [1]).axes) == 2


def test_error_bars_of_costs_stay_on_the_logarithmic_axis():
    cost = {"workers": [1, 2], "relative_time": [1.0, 0.5], "relative_time_stddev": [0.0, 2.0]}
    cost |= {"relative_fovs": [1.0, 1.0], "relative_fovs_stddev": [0.0, 4.0]}
    for panel, ends in zip(draw_costs({0.5: cost}, [1, 2]).axes, ([0.1, 2.5], [0.2, 5.0]), strict=True):
        bars = panel.containers[0].lines[2][0].get_segments()
        assert bars[1][:, 1] == pytest.approx(ends)  # a fifth, and five times as much
