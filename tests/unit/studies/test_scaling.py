"""Measured throughput, the network that is fitted to it, and the model of synchronous training."""

from dataclasses import replace

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.io import hdf5
from ffn.studies.scaling import (
    Cluster,
    Interconnect,
    Measurement,
    fitted_overhead,
    read_measurement,
    ring_allreduce_seconds,
)

RNG = np.random.default_rng(5)
TIMES = 0.02 + RNG.lognormal(-4.0, 0.3, (2, 200))
EQUAL = np.full((1, 4), 0.05)
NETWORK = Interconnect(latency=1e-5, bandwidth=1e9)


def test_throughput_counts_all_processes_and_the_allreduce(measured):
    found = read_measurement(measured[1])
    assert (found.processes, found.fovs_per_step, found.num_weights) == (2, 4, 50_000)
    step = found.compute_seconds.mean() + 1e-3
    assert found.fovs_per_second == pytest.approx(2 * 4 / step)


def test_a_file_that_is_no_measurement_is_refused(tmp_path):
    hdf5.write_arrays(f"{tmp_path}/a.h5", {"compute_seconds": np.ones((1, 3))}, {"processes": 1, "fovs_per_step": 1})
    with pytest.raises(EvaluationError, match="a.h5: .*num_weights"):
        read_measurement(f"{tmp_path}/a.h5")


def cluster(times=TIMES):
    return Cluster(times.ravel(), NETWORK, 2e6)


def test_efficiency_falls_by_the_allreduce_and_the_slowest_node():
    assert cluster().slowest_seconds(1) == pytest.approx(cluster().alone_seconds)
    draws = RNG.choice(TIMES.ravel(), (20_000, 50))
    assert cluster().slowest_seconds(50) == pytest.approx(draws.max(axis=1).mean(), rel=0.01)
    assert ring_allreduce_seconds(1, 2e6, NETWORK) == 0
    assert ring_allreduce_seconds(2, 2e6, NETWORK) == pytest.approx(2e-5 + 2e-3)  # every byte goes there and back
    assert ring_allreduce_seconds(1024, 2e6, NETWORK) == pytest.approx(2046e-5 + 2 * 1023 / 1024 * 2e-3)
    equal = cluster(EQUAL)
    assert equal.fovs_per_second(1) == pytest.approx(1 / 0.05)
    cost = ring_allreduce_seconds(8, 2e6, NETWORK)
    assert equal.fovs_per_second(8) == pytest.approx(8 / (0.05 + cost), rel=1e-6)


@pytest.mark.parametrize(("counts", "fitted"), [((1,), 0.0), ((1, 2), 2e-3), ((1, 2, 3, 4), 4e-3)])
def test_the_overhead_is_that_of_the_exchange_which_many_nodes_make(counts, fitted):
    """One call for two processes, two for more; the last process to come waits for no other."""
    beyond = {1: 0.0, 2: 2e-3, 3: 3e-3, 4: 5e-3}
    waits = {n: np.linspace(0, 0.1, n)[:, None] + np.zeros(5) for n in counts}
    times = {n: waits[n] + beyond[n] + ring_allreduce_seconds(n, 2e6, NETWORK) for n in counts}
    found = fitted_overhead([Measurement(n, 1, 500_000, EQUAL, times[n]) for n in counts], cluster())
    assert found == pytest.approx(fitted)
    assert replace(cluster(), overhead=found).exchange_seconds(1) == 0
