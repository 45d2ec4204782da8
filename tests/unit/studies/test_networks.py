"""Ring costs against closed forms, and fits against known networks."""

import numpy as np
import pytest

from ffn.studies.networks import (
    LEAST_LATENCY,
    Interconnect,
    fit_network,
    ring_allgather_seconds,
    ring_allreduce_seconds,
)

NETWORK = Interconnect(latency=1e-5, bandwidth=1e9, source="test")
SIZES = np.array([1e3, 4e3, 1e5, 1e6, 8e6])


def test_ring_costs():
    assert ring_allreduce_seconds(1, 2e6, NETWORK) == 0
    assert ring_allreduce_seconds(2, 2e6, NETWORK) == pytest.approx(2e-5 + 2e-3)  # every byte goes there and back
    assert ring_allreduce_seconds(1024, 2e6, NETWORK) == pytest.approx(2046e-5 + 2 * 1023 / 1024 * 2e-3)
    assert ring_allgather_seconds(5, 1e6, NETWORK) == pytest.approx(4 * (1e-5 + 1e-3))


def measured(network, rings):
    """Return processes, bytes and times of allreduces; the times are slightly off."""
    nodes, sizes = (grid.ravel() for grid in np.meshgrid(rings, SIZES))
    times = [ring_allreduce_seconds(n, size, network) for n, size in zip(nodes.tolist(), sizes, strict=True)]
    return nodes, sizes, times * np.resize([1.002, 0.998, 1.001, 0.999], len(times))


@pytest.mark.parametrize("constant", [0.0, 1e-3])
def test_rings_of_several_sizes_separate_constant_and_latency(constant):
    found = fit_network(*measured(NETWORK._replace(latency=1e-4, constant=constant), [2, 4, 8]))
    assert found.latency == pytest.approx(1e-4, rel=0.05)
    assert found.bandwidth == pytest.approx(NETWORK.bandwidth, rel=0.05)
    assert found.constant == pytest.approx(constant, rel=0.05, abs=1e-5)
    assert found.source == "2, 4, 8 processes here"


def test_the_constant_of_a_single_ring_counts_once_on_many_nodes():
    found = fit_network(*measured(NETWORK._replace(constant=5e-3), [2]))
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
