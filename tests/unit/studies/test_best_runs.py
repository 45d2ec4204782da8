"""The runs at the best rates: the modelled time of their steps, the cost of an F1, curves over seeds."""

import json
import math

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.studies.runs import BestRuns, _cost_panel, costs_to_reach, mean_curves, read_best_runs, steps_to_reach

from .conftest import STEPS, WORKERS, run_of


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"best_rates": {workers: 4e-4 for workers in WORKERS}}))
    return str(path)


def test_steps_take_the_time_of_as_many_nodes_with_one_fov_each(grid, rates, tmp_path):
    scaling = {"nodes": [1, 16], "step_seconds": [0.1, 0.9], "exchange_seconds": [0.0, 0.4]}
    (tmp_path / "scaling.json").write_text(json.dumps(scaling | {"fovs_per_step": 2}))
    best = read_best_runs(grid, rates, f"{tmp_path}/scaling.json")
    assert {workers: [run.seed for run in runs] for workers, runs in best.runs.items()} == {w: [1, 2] for w in WORKERS}
    expected = np.array([0.1, 0.2, 0.3, 0.4]) / 2 + [0.0, 0.1, 0.2, 0.3]  # linear in the logarithm of the nodes
    np.testing.assert_allclose([best.step_seconds[w] for w in WORKERS], expected, rtol=1e-6)
    assert best.runs[1][0].step.tolist() == STEPS.tolist()


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": [1]}'])
def test_another_file_is_not_a_scaling_study(text, grid, rates, tmp_path):
    (tmp_path / "scaling.json").write_text(text)
    with pytest.raises(EvaluationError, match="scaling.json"):
        read_best_runs(grid, rates, f"{tmp_path}/scaling.json")


def test_curves_are_means_with_error_bars_and_targets_stay_reached():
    assert steps_to_reach(run_of([0.6, 0.2, 0.5, 0.7]), 0.5, 400) == 300  # the first value was luck
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7, 0.4]), 0.5, 300))
    assert steps_to_reach(run_of([0.6, 0.7]), 0.5, 200) == 100
    assert math.isnan(steps_to_reach(run_of([]), 0.5, 0))
    assert steps_to_reach(run_of([0.2, 0.6, np.nan]), 0.5, 300) == 200  # no walk ended at the end
    assert math.isnan(steps_to_reach(run_of([0.6, 0.7]), 0.5, 300))  # diverged
    cost = {"workers": [1, 2], "relative_time": [1.0, 0.5], "relative_time_stddev": [0.0, 2.0]}
    below, above = _cost_panel("time", {0.5: cost}, [1, 2]).lines[0].bars
    assert 0.5 - below[1] == pytest.approx(0.1) and 0.5 + above[1] == pytest.approx(2.5)  # a fifth, five times as much
    runs = [run_of([0.2, 0.4, 0.6]), run_of([0.4, 0.6], seed=2)]
    curves = mean_curves(runs, step_seconds=3.6)
    assert curves["step"].tolist() == [100, 200]
    np.testing.assert_allclose(curves["seconds"], [360, 720])
    np.testing.assert_allclose(curves["f1"], [0.3, 0.5])
    np.testing.assert_allclose(curves["f1_stddev"], math.sqrt(0.02))


def test_costs_are_relative_to_the_fewest_workers_that_reach_the_target():
    never, slow, fast = ([0.1] * 8, [0.1] * 7 + [0.6], [0.1, 0.6] + [0.6] * 6)
    runs = {n: [run_of(f1, n, seed=seed) for seed in (1, 2)] for n, f1 in ((1, never), (2, slow), (4, fast))}
    cost = costs_to_reach(BestRuns(runs, {}, {1: 1.0, 2: 1.0, 4: 1.2}), 0.5)
    assert cost["workers"] == [2, 4] and cost["steps"] == [800, 200]
    assert cost["relative_time"] == pytest.approx([1.0, 0.25 * 1.2])
    assert cost["relative_fovs"] == pytest.approx([1.0, 0.5])
    assert cost["relative_time_stddev"] == [0.0, 0.0]
    assert cost["failed"] == {1: 2}
