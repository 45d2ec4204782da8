"""Order statistics against closed forms, and fits against known distributions."""

import numpy as np
import pytest

from ffn.studies.order_statistics import (
    MeasuredTimes,
    StepTimes,
    expected_order_statistic,
    fit_step_times,
    with_stragglers,
)

TIMES = StepTimes(shift=0.02, log_mean=-4.0, log_stddev=0.3)


def exponential(probability):
    return -np.log(probability)


@pytest.mark.parametrize(("draws", "rank"), [(1, 1), (2, 2), (7, 3), (1024, 1024), (2048, 2040)])
def test_order_statistics_of_the_exponential_distribution(draws, rank):
    exact = sum(1 / i for i in range(draws - rank + 1, draws + 1))
    assert expected_order_statistic(exponential, draws, rank) == pytest.approx(exact, rel=1e-8)


def test_order_statistics_of_the_uniform_distribution():
    assert expected_order_statistic(lambda exceeded: 1 - exceeded, 9, 7) == pytest.approx(0.7, rel=1e-6)


def test_one_draw_is_the_mean_and_survival_has_an_inverse():
    assert expected_order_statistic(TIMES.inverse_survival, 1, 1) == pytest.approx(TIMES.mean, rel=1e-9)
    exceeded = np.array([1e-12, 1e-3, 0.5, 0.999])
    np.testing.assert_allclose(TIMES.survival(TIMES.inverse_survival(exceeded)), exceeded, rtol=1e-6)
    scaled = TIMES.scaled(1.5)
    assert (scaled.mean, scaled.variation) == (pytest.approx(1.5), pytest.approx(TIMES.variation))


def test_a_fit_finds_the_distribution_and_its_own_quality():
    draws = TIMES.inverse_survival(np.random.default_rng(5).random(4000))
    fit = fit_step_times(draws)
    assert fit.times.mean == pytest.approx(TIMES.mean, rel=0.01)
    assert fit.times.variation == pytest.approx(TIMES.variation, rel=0.1)
    assert fit.distance < 0.03 and fit.longest_ratio == pytest.approx(1, abs=0.03)
    two_speeds = np.concatenate([draws[:2000], draws[:2000] + 1.0])
    assert fit_step_times(two_speeds).distance > 0.1


def test_measured_times_keep_rare_slow_steps():
    """A fit of all steps misses the 1 % of them that take four times as long."""
    rng = np.random.default_rng(7)
    seconds = TIMES.inverse_survival(rng.random(300)) * np.where(np.arange(300) % 100 == 0, 4, 1)
    times = MeasuredTimes(np.sort(seconds)[::-1], fit_step_times(seconds).times)
    assert expected_order_statistic(times.inverse_survival, 1, 1) == pytest.approx(times.mean, rel=0.01)
    longest = rng.choice(seconds, (4000, 128)).max(axis=1).mean()
    assert expected_order_statistic(times.inverse_survival, 128, 128) == pytest.approx(longest, rel=0.05)
    assert expected_order_statistic(times.tail.inverse_survival, 128, 128) < 0.8 * longest
    rare = times.inverse_survival(np.array([1e-6, 1e-9]))
    assert (rare >= seconds.max()).all() and rare[1] > rare[0] - 1e-12
    assert times.variation == pytest.approx(seconds.std() / seconds.mean())
    exceeded = np.array([0.9, 0.5, 0.1])
    np.testing.assert_allclose(times.survival(times.inverse_survival(exceeded)), exceeded, atol=1 / 300)
    more = with_stragglers(times, rate=0.05, slowdown=4.0)
    assert expected_order_statistic(more, 64, 64) > expected_order_statistic(times.inverse_survival, 64, 64)
    assert times.scaled(1.0).inverse_survival(exceeded) == pytest.approx(times.inverse_survival(exceeded) / times.mean)


def test_stragglers_are_a_mixture():
    slow = with_stragglers(TIMES, rate=0.05, slowdown=4.0)
    mean = TIMES.mean * (0.95 + 0.05 * 4)
    assert expected_order_statistic(slow, 1, 1) == pytest.approx(mean, rel=1e-3)
    rng = np.random.default_rng(3)
    draws = TIMES.inverse_survival(rng.random((20000, 50))) * np.where(rng.random((20000, 50)) < 0.05, 4, 1)
    assert expected_order_statistic(slow, 50, 50) == pytest.approx(draws.max(axis=1).mean(), rel=0.01)
    none = with_stragglers(TIMES, rate=0.0, slowdown=4.0)
    assert expected_order_statistic(none, 64, 64) == pytest.approx(
        expected_order_statistic(TIMES.inverse_survival, 64, 64), rel=1e-6
    )
