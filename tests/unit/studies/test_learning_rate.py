"""The grid of learning rates, optima and exponents, against those of known curves."""

import math

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.studies.runs import (
    Optimum,
    best_rates,
    find_optimum,
    fit_power_law,
    read_runs,
    score_grid,
    study_learning_rate,
)

from .conftest import CONFIG, RATES, STEPS, WORKERS, peaked, write_metrics


def test_a_diverged_run_is_a_result_and_a_missing_run_an_error(grid, tmp_path):
    short = tmp_path / f"workers-8-rate-{float(RATES[-1])!r}-seed-1.csv"
    write_metrics(short, 0.5, 1, STEPS[:0])
    runs = read_runs(grid)
    scores = score_grid(runs, "f1", CONFIG)
    assert np.isnan(scores[3, -1]) and np.isfinite(scores[:3]).all()
    with pytest.raises(EvaluationError, match="2 workers .*0.0001"):
        score_grid([run for run in runs if (run.workers, run.rate) != (2, 1e-4)], "f1", CONFIG)


def test_a_number_of_workers_that_diverges_at_every_rate_is_an_error(grid, tmp_path):
    for path in tmp_path.glob("workers-8-rate-*"):
        write_metrics(path, 0.5, 1, STEPS[:0])
    tried = [path for path in grid if "-rate-" in path]
    with pytest.raises(EvaluationError, match="study.learning_rates"):
        study_learning_rate(tried, f"{tmp_path}/rates.json", CONFIG)


def test_the_best_rates_are_read_from_a_study(tmp_path):
    study = tmp_path / "rates.json"
    study.write_text('{"best_rates": {"1": 0.001, "4": 0.002}}')
    assert best_rates(str(study)) == {1: 0.001, 4: 0.002}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"best_rates": {"one": 1}}'])
def test_another_file_is_not_a_study_of_the_learning_rate(text, tmp_path):
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(EvaluationError, match="rates.json"):
        best_rates(f"{tmp_path}/rates.json")


def test_the_parabola_finds_an_optimum_between_the_rates():
    optimum = find_optimum(RATES, peaked(2, 0.5))
    assert optimum.rate == pytest.approx(3e-4 * math.sqrt(2), rel=1e-6)
    assert optimum.best_tried == 4e-4 and not optimum.at_edge
    assert optimum.log_stddev == pytest.approx(math.log(2) / math.sqrt(12))  # from the grid alone


def test_optima_beside_diverged_rates_and_at_the_edge():
    scores = peaked(1, 0.5)
    scores[-2:] = np.nan
    assert find_optimum(RATES, scores).rate == find_optimum(RATES, peaked(1, 0.5)).rate
    assert find_optimum(RATES, -RATES).at_edge
    alike = np.full(len(RATES), np.nan)
    alike[2:4] = 0.7
    lone = find_optimum(RATES, alike)
    assert lone.best_tried == RATES[2] and RATES[2] <= lone.rate <= RATES[3] and not lone.at_edge


def test_the_exponent_lies_within_its_uncertainty():
    rng, workers = np.random.default_rng(7), np.array([1, 2, 4, 8, 16])
    rates = np.geomspace(5e-5, 2e-2, 12)
    pulls = []
    for _ in range(30):
        optima = [find_optimum(rates, peaked(n, 0.5, rates) + 0.002 * rng.standard_normal(12)) for n in workers]
        law = fit_power_law(workers, optima)
        pulls.append((law.exponent - 0.5) / law.stddev)
    assert np.mean(np.abs(pulls) < 1) >= 0.6  # two of three should lie within a standard deviation
    assert np.std(pulls) > 0.2  # which is not many times too wide


def test_scatter_and_optima_at_the_edge_widen_the_fit():
    tight = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    bent = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 3e-4, 3e-4, 9e-4)]
    exact, loose = (fit_power_law(np.array(WORKERS), optima) for optima in (tight, bent))
    assert exact.exponent == pytest.approx(1.0) and exact.rate == pytest.approx(1e-4)
    assert loose.stddev > 3 * exact.stddev
    optima = [Optimum(rate, 0.1, rate, rate < 2e-4) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    assert fit_power_law(np.array(WORKERS), optima).num_optima == 3
    assert fit_power_law(np.array(WORKERS[:3]), optima[:3]) is None
