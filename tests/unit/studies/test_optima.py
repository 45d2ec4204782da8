"""Optima and exponents, against those of known curves."""

import math

import numpy as np
import pytest

from ffn.studies.optima import Optimum, find_optimum, fit_power_law, with_uncertainty

from .conftest import RATES, WORKERS, peaked


def test_the_parabola_finds_an_optimum_between_the_rates():
    optimum = find_optimum(RATES, peaked(2, 0.5), 0.0, np.random.default_rng(0))
    assert optimum.rate == pytest.approx(3e-4 * math.sqrt(2), rel=1e-6)
    assert optimum.best_tried == 4e-4 and not optimum.at_edge
    assert optimum.log_stddev == pytest.approx(math.log(2) / math.sqrt(12))  # from the grid alone


def test_noise_widens_the_uncertainty_and_diverged_rates_do_not_break_it():
    scores = peaked(1, 0.5)
    scores[-2:] = np.nan
    noisy = find_optimum(RATES, scores, 0.01, np.random.default_rng(0))
    assert noisy.log_stddev > 1.2 * math.log(2) / math.sqrt(12)
    assert find_optimum(RATES, -RATES, 0.0, np.random.default_rng(0)).at_edge
    alike = np.full(len(RATES), np.nan)
    alike[2:4] = 0.7
    lone = find_optimum(RATES, alike, 0.0, np.random.default_rng(0))
    assert lone.best_tried == RATES[2] and RATES[2] <= lone.rate <= RATES[3] and not lone.at_edge


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_exponent_lies_within_its_uncertainty(exponent):
    rng, workers = np.random.default_rng(7), np.array([1, 2, 4, 8, 16])
    rates = np.geomspace(5e-5, 2e-2, 12)
    pulls = []
    for _ in range(30):
        optima = [
            find_optimum(rates, peaked(n, exponent, rates) + 0.002 * rng.standard_normal(12), 0.002, rng)
            for n in workers
        ]
        law = fit_power_law(workers, optima)
        pulls.append((law.exponent - exponent) / law.stddev)
    assert np.mean(np.abs(pulls) < 1) >= 0.6  # two of three should lie within a standard deviation
    assert np.std(pulls) > 0.2  # which is not many times too wide


def test_scatter_around_the_line_adds_to_the_uncertainty():
    tight = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    bent = [Optimum(rate, 0.05, rate, False) for rate in (1e-4, 3e-4, 3e-4, 9e-4)]
    exact, loose = (fit_power_law(np.array(WORKERS), optima) for optima in (tight, bent))
    assert exact.exponent == pytest.approx(1.0) and exact.rate == pytest.approx(1e-4)
    assert loose.stddev > 3 * exact.stddev


def test_optima_at_the_edge_are_left_out():
    optima = [Optimum(rate, 0.1, rate, rate < 2e-4) for rate in (1e-4, 2e-4, 4e-4, 8e-4)]
    assert fit_power_law(np.array(WORKERS), optima).num_optima == 3
    assert fit_power_law(np.array(WORKERS[:3]), optima[:3]) is None


@pytest.mark.parametrize(
    ("value", "stddev", "text"),
    [(0.512, 0.096, "0.5 ± 0.1"), (0.512, 0.094, "0.51 ± 0.09"), (123.4, 20.0, "120 ± 20"), (-0.04, 0.3, "0.0 ± 0.3")],
)
def test_only_known_digits_are_shown(value, stddev, text):
    assert with_uncertainty(value, stddev) == text
