"""The scaling model: order statistics and ring costs against closed forms, fits against what was put in."""

import numpy as np
import pytest

from ffn.studies.networks import (
    LEAST_LATENCY,
    Network,
    fit_network,
    ring_allgather_seconds,
    ring_allreduce_seconds,
)
from ffn.studies.order_statistics import (
    MeasuredTimes,
    StepTimes,
    expected_order_statistic,
    fit_step_times,
    with_stragglers,
)
from ffn.studies.scaling_model import Cluster, curve, log_spread_for

NETWORK = Network(latency=1e-5, bandwidth=1e9, source="test")
TIMES = StepTimes(shift=0.02, log_mean=-4.0, log_stddev=0.3)


def exponential(probability):
    return -np.log(probability)


def cluster(times=TIMES, **changes):
    return Cluster(**{
        "inverse_survival": times.inverse_survival,
        "mean_seconds": times.mean,
        "network": NETWORK,
        "num_bytes": 2e6,
        **changes,
    })  # fmt: skip


@pytest.mark.parametrize(("draws", "rank"), [(1, 1), (2, 2), (7, 3), (1024, 1024), (2048, 2040)])
def test_order_statistics_of_the_exponential_distribution(draws, rank):
    exact = sum(1 / i for i in range(draws - rank + 1, draws + 1))
    assert expected_order_statistic(exponential, draws, rank) == pytest.approx(exact, rel=1e-8)


def test_order_statistics_of_the_uniform_distribution():
    assert expected_order_statistic(lambda exceeded: 1 - exceeded, 9, 7) == pytest.approx(0.7, rel=1e-6)


def test_one_draw_is_the_mean_and_survival_inverts():
    assert expected_order_statistic(TIMES.inverse_survival, 1, 1) == pytest.approx(TIMES.mean, rel=1e-9)
    exceeded = np.array([1e-12, 1e-3, 0.5, 0.999])
    np.testing.assert_allclose(TIMES.survival(TIMES.inverse_survival(exceeded)), exceeded, rtol=1e-6)
    scaled = TIMES.scaled(1.5)
    assert (scaled.mean, scaled.variation) == (pytest.approx(1.5), pytest.approx(TIMES.variation))


def test_a_fit_finds_the_distribution_and_says_how_good_it_is():
    draws = TIMES.inverse_survival(np.random.default_rng(5).random(4000))
    fit = fit_step_times(draws)
    assert fit.times.mean == pytest.approx(TIMES.mean, rel=0.01)
    assert fit.times.variation == pytest.approx(TIMES.variation, rel=0.1)
    assert fit.distance < 0.03 and fit.longest_ratio == pytest.approx(1, abs=0.03)
    two_speeds = np.concatenate([draws[:2000], draws[:2000] + 1.0])
    assert fit_step_times(two_speeds).distance > 0.1


def test_measured_times_keep_a_rare_slow_kind_of_step():
    """A fit of the bulk takes 1 % of steps that are four times as long for nothing."""
    rng = np.random.default_rng(7)
    seconds = TIMES.inverse_survival(rng.random(300)) * np.where(np.arange(300) % 100 == 0, 4, 1)
    times = MeasuredTimes(np.sort(seconds)[::-1], fit_step_times(seconds).times)
    assert cluster(times).efficiency(1) == pytest.approx(1, rel=0.01)
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


def test_ring_costs():
    assert ring_allreduce_seconds(1, 2e6, NETWORK) == 0
    assert ring_allreduce_seconds(2, 2e6, NETWORK) == pytest.approx(2e-5 + 2e-3)  # every byte goes there and back
    assert ring_allreduce_seconds(1024, 2e6, NETWORK) == pytest.approx(2046e-5 + 2 * 1023 / 1024 * 2e-3)
    assert ring_allgather_seconds(5, 1e6, NETWORK) == pytest.approx(4 * (1e-5 + 1e-3))


SIZES = np.array([1e3, 4e3, 1e5, 1e6, 8e6])


def measured(network, rings):
    """Processes, bytes and times of allreduces, which are a little off."""
    nodes, sizes = (grid.ravel() for grid in np.meshgrid(rings, SIZES))
    times = [ring_allreduce_seconds(n, size, network) for n, size in zip(nodes.tolist(), sizes, strict=True)]
    return nodes, sizes, times * np.resize([1.002, 0.998, 1.001, 0.999], len(times))


@pytest.mark.parametrize("constant", [0.0, 1e-3])
def test_rings_of_several_sizes_tell_constant_latency_and_bandwidth(constant):
    found = fit_network(*measured(NETWORK._replace(latency=1e-4, constant=constant), [2, 4, 8]))
    assert found.latency == pytest.approx(1e-4, rel=0.05)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    assert found.constant == pytest.approx(constant, rel=0.05, abs=1e-5)
    assert found.source == "2, 4, 8 processes here"


def test_what_is_measured_with_one_ring_is_waited_for_once_on_many_nodes():
    found = fit_network(*measured(NETWORK._replace(constant=5e-3), [2]))
    assert found.latency == LEAST_LATENCY and "latency assumed" in found.source
    assert found.constant + 2 * found.latency == pytest.approx(5e-3 + 2 * NETWORK.latency, rel=0.01)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    expected = 5e-3 + 4094 * LEAST_LATENCY + 2 * 2e6 / NETWORK.bandwidth
    assert ring_allreduce_seconds(2048, 2e6, found) == pytest.approx(expected, rel=0.02)
    assert ring_allgather_seconds(2, 0, found) == found.constant + LEAST_LATENCY
    assert ring_allreduce_seconds(1, 2e6, found) == ring_allgather_seconds(1, 2e6, found) == 0


@pytest.mark.parametrize("seconds", [1e-3, 1e-7])
def test_a_fit_to_what_no_ring_does_is_neither_negative_nor_infinite(seconds):
    found = fit_network(np.full(4, 2), SIZES[:4], np.full(4, seconds))  # no slope to see, or quicker than any message
    assert np.isfinite(found.bandwidth) and found.bandwidth > 0 and found.latency > 0
    assert found.constant == pytest.approx(max(0, seconds - 2 * LEAST_LATENCY))


def test_equal_nodes_lose_only_the_allreduce():
    equal = cluster(StepTimes(0.05, -20.0, 1e-9))
    assert equal.efficiency(1) == pytest.approx(1.0)
    cost = ring_allreduce_seconds(8, 2e6, NETWORK)
    assert equal.efficiency(8) == pytest.approx(0.05 / (0.05 + cost), rel=1e-6)
    assert equal.fovs_per_second(8) == pytest.approx(8 / (0.05 + cost), rel=1e-6)


def test_efficiency_falls_with_nodes_and_backup_workers_help_against_stragglers():
    efficiency = curve(cluster(), [1, 4, 64, 2048]).efficiency
    assert efficiency == sorted(efficiency, reverse=True)
    slow = with_stragglers(TIMES, rate=0.001, slowdown=5.0)
    waiting, backed = cluster(inverse_survival=slow), cluster(inverse_survival=slow, backup_workers=4)
    assert backed.efficiency(1024) > waiting.efficiency(1024)
    nodes = [1, 2, 8, 64]
    more = zip(curve(backed, nodes).efficiency, curve(waiting, nodes).efficiency, strict=True)
    assert all(with_backup >= without for with_backup, without in more)  # as many as pay, none if none does
    assert cluster(StepTimes(0.05, -20.0, 1e-9), backup_workers=4).efficiency(8) == pytest.approx(
        cluster(StepTimes(0.05, -20.0, 1e-9)).efficiency(8)
    )


def test_the_spread_that_explains_an_efficiency():
    spread = 0.1
    times = StepTimes(0.0, 0.0, float(np.sqrt(np.log1p(spread**2)))).scaled(TIMES.mean)
    assert log_spread_for(cluster(), cluster(times).efficiency(512), 512) == pytest.approx(spread, rel=1e-4)
