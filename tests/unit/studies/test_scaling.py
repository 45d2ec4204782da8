"""Measured throughput, the network that is fitted to it, and the model of synchronous training."""

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.studies.cluster import (
    LEAST_LATENCY,
    Cluster,
    Interconnect,
    StepTimes,
    curve,
    fit_network,
    ring_allgather_seconds,
    ring_allreduce_seconds,
)
from ffn.studies.config import ScalingConfig
from ffn.studies.scaling import _variation_for, read_measurement, study_scaling

RNG = np.random.default_rng(5)
TIMES = StepTimes.of(0.02 + RNG.lognormal(-4.0, 0.3, 400))
EQUAL = StepTimes.of(np.full(4, 0.05))


def test_throughput_counts_all_processes_and_the_allreduce(measured):
    found = read_measurement(measured[1])
    assert (found.processes, found.fovs_per_step, found.num_weights) == (2, 4, 50_000)
    step = found.compute_seconds.mean() + 1e-3
    assert found.fovs_per_second == pytest.approx(2 * 4 / step)


def test_a_file_that_is_no_measurement_is_refused(tmp_path):
    hdf5.write_arrays(f"{tmp_path}/a.h5", {"compute_seconds": np.ones((1, 3))}, {"processes": 1, "fovs_per_step": 1})
    with pytest.raises(EvaluationError, match="a.h5: .*num_weights"):
        read_measurement(f"{tmp_path}/a.h5")


def test_one_process_has_no_network_to_measure(measured, tmp_path):
    with pytest.raises(EvaluationError, match="study.network"):
        study_scaling(measured[:1], f"{tmp_path}/scaling.json", ScalingConfig(network="measured"))


def test_the_slowest_of_many_nodes_is_that_of_as_many_draws():
    assert TIMES.mean == pytest.approx(TIMES.seconds.mean()) and TIMES.expected(1, 1) == TIMES.mean
    assert TIMES.variation == pytest.approx(TIMES.seconds.std() / TIMES.mean)
    draws = np.sort(RNG.choice(TIMES.seconds, (20_000, 50)), axis=1)
    for rank in (50, 47, 10):
        assert TIMES.expected(50, rank) == pytest.approx(draws[:, rank - 1].mean(), rel=0.01)
    assert TIMES.scaled(1.5).expected(50, 50) == pytest.approx(TIMES.expected(50, 50) * 1.5 / TIMES.mean)
    slow = TIMES.with_stragglers(0.05, 4.0)
    assert slow.mean == pytest.approx(TIMES.mean * (0.95 + 0.05 * 4))
    slowed = draws * np.where(RNG.random(draws.shape) < 0.05, 4, 1)
    assert slow.expected(50, 50) == pytest.approx(slowed.max(axis=1).mean(), rel=0.01)


NETWORK = Interconnect(latency=1e-5, bandwidth=1e9, source="test")
SIZES = np.array([1e3, 4e3, 1e5, 1e6, 8e6])


def test_ring_costs():
    assert ring_allreduce_seconds(1, 2e6, NETWORK) == 0
    assert ring_allreduce_seconds(2, 2e6, NETWORK) == pytest.approx(2e-5 + 2e-3)  # every byte goes there and back
    assert ring_allreduce_seconds(1024, 2e6, NETWORK) == pytest.approx(2046e-5 + 2 * 1023 / 1024 * 2e-3)
    assert ring_allgather_seconds(5, 1e6, NETWORK) == pytest.approx(4 * (1e-5 + 1e-3))


def rings(network, nodes):
    """Return processes, bytes and times of allreduces; the times are slightly off."""
    nodes, sizes = (grid.ravel() for grid in np.meshgrid(nodes, SIZES))
    times = [ring_allreduce_seconds(n, size, network) for n, size in zip(nodes.tolist(), sizes, strict=True)]
    return nodes, sizes, times * np.resize([1.002, 0.998, 1.001, 0.999], len(times))


@pytest.mark.parametrize("constant", [0.0, 1e-3])
def test_rings_of_several_sizes_separate_constant_and_latency(constant):
    found = fit_network(*rings(NETWORK._replace(latency=1e-4, constant=constant), [2, 4, 8]))
    assert found.latency == pytest.approx(1e-4, rel=0.05)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    assert found.constant == pytest.approx(constant, rel=0.05, abs=1e-5)
    assert found.source.startswith("2, 4, 8 ")


def test_the_constant_of_a_single_ring_counts_once_on_many_nodes():
    found = fit_network(*rings(NETWORK._replace(constant=5e-3), [2]))
    assert found.latency == LEAST_LATENCY and "latency assumed" in found.source
    assert found.constant + 2 * found.latency == pytest.approx(5e-3 + 2 * NETWORK.latency, rel=0.01)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    expected = 5e-3 + 4094 * LEAST_LATENCY + 2 * 2e6 / NETWORK.bandwidth
    assert ring_allreduce_seconds(2048, 2e6, found) == pytest.approx(expected, rel=0.02)
    assert ring_allgather_seconds(2, 0, found) == found.constant + LEAST_LATENCY
    assert ring_allreduce_seconds(1, 2e6, found) == ring_allgather_seconds(1, 2e6, found) == 0


@pytest.mark.parametrize("seconds", [1e-3, 1e-7])
def test_a_fit_to_impossible_times_is_neither_negative_nor_infinite(seconds):
    found = fit_network(np.full(4, 2), SIZES[:4], np.full(4, seconds))  # no slope, or faster than any message
    assert np.isfinite(found.bandwidth) and found.bandwidth > 0 and found.latency > 0
    assert found.constant == pytest.approx(max(0, seconds - 2 * LEAST_LATENCY))


def cluster(times=TIMES, **changes):
    return Cluster(times, times.mean, NETWORK, 2e6, **changes)


def test_equal_nodes_lose_only_the_time_of_the_allreduce():
    equal = cluster(EQUAL)
    assert equal.efficiency(1) == pytest.approx(1.0)
    cost = ring_allreduce_seconds(8, 2e6, NETWORK)
    assert equal.efficiency(8) == pytest.approx(0.05 / (0.05 + cost), rel=1e-6)
    assert equal.fovs_per_second(8) == pytest.approx(8 / (0.05 + cost), rel=1e-6)


def test_efficiency_falls_with_nodes_and_backup_workers_help_against_stragglers():
    efficiency = curve(cluster(), [1, 4, 64, 2048])["efficiency"]
    assert efficiency == sorted(efficiency, reverse=True)
    slow = TIMES.with_stragglers(0.001, 5.0)
    waiting, backed = cluster(slow), cluster(slow, backup_workers=4)
    assert backed.efficiency(1024) > waiting.efficiency(1024)
    nodes = [1, 2, 8, 64]
    more = zip(curve(backed, nodes)["efficiency"], curve(waiting, nodes)["efficiency"], strict=True)
    assert all(with_backup >= without for with_backup, without in more)  # a step leaves out only as many as pay
    assert cluster(EQUAL, backup_workers=4).efficiency(8) == pytest.approx(cluster(EQUAL).efficiency(8))


def test_the_variation_that_explains_an_efficiency():
    more = StepTimes(TIMES.mean + 3 * (TIMES.seconds - TIMES.mean), TIMES.share)
    found = _variation_for(cluster(), cluster(more).efficiency(512), 512)
    assert found == pytest.approx(more.variation) == pytest.approx(3 * TIMES.variation)
