"""The model of synchronous training against closed forms."""

import numpy as np
import pytest

from ffn.studies.networks import Interconnect, ring_allreduce_seconds
from ffn.studies.order_statistics import StepTimes, with_stragglers
from ffn.studies.scaling_model import Cluster, curve, log_spread_for

NETWORK = Interconnect(latency=1e-5, bandwidth=1e9, source="test")
TIMES = StepTimes(shift=0.02, log_mean=-4.0, log_stddev=0.3)


def cluster(times=TIMES, **changes):
    return Cluster(**{
        "inverse_survival": times.inverse_survival,
        "mean_seconds": times.mean,
        "network": NETWORK,
        "num_bytes": 2e6,
        **changes,
    })  # fmt: skip


def test_equal_nodes_lose_only_the_time_of_the_allreduce():
    equal = cluster(StepTimes(0.05, -20.0, 1e-9))
    assert equal.efficiency(1) == pytest.approx(1.0)
    cost = ring_allreduce_seconds(8, 2e6, NETWORK)
    assert equal.efficiency(8) == pytest.approx(0.05 / (0.05 + cost), rel=1e-6)
    assert equal.fovs_per_second(8) == pytest.approx(8 / (0.05 + cost), rel=1e-6)


def test_efficiency_falls_with_nodes_and_backup_workers_help_against_stragglers():
    efficiency = curve(cluster(), [1, 4, 64, 2048])["efficiency"]
    assert efficiency == sorted(efficiency, reverse=True)
    slow = with_stragglers(TIMES, rate=0.001, slowdown=5.0)
    waiting, backed = cluster(inverse_survival=slow), cluster(inverse_survival=slow, backup_workers=4)
    assert backed.efficiency(1024) > waiting.efficiency(1024)
    nodes = [1, 2, 8, 64]
    more = zip(curve(backed, nodes)["efficiency"], curve(waiting, nodes)["efficiency"], strict=True)
    assert all(with_backup >= without for with_backup, without in more)  # a step leaves out only as many as pay
    assert cluster(StepTimes(0.05, -20.0, 1e-9), backup_workers=4).efficiency(8) == pytest.approx(
        cluster(StepTimes(0.05, -20.0, 1e-9)).efficiency(8)
    )


def test_the_spread_that_explains_an_efficiency():
    spread = 0.1
    times = StepTimes(0.0, 0.0, float(np.sqrt(np.log1p(spread**2)))).scaled(TIMES.mean)
    assert log_spread_for(cluster(), cluster(times).efficiency(512), 512) == pytest.approx(spread, rel=1e-4)
