"""A model of synchronous training: a step takes as long as the slowest node, plus a ring allreduce."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ffn.studies.networks import Interconnect, ring_allgather_seconds, ring_allreduce_seconds
from ffn.studies.order_statistics import InverseSurvival, StepTimes, expected_order_statistic

# Dong et al. 2019, Fig. 3 and text: one and 1024 nodes of Theta (64-core Knights Landing), depth 9, FOV 33³, batch 1.
PAPER_FOVS_PER_SECOND = {1: 0.72, 1024: 523.0}
PAPER_NODES = 1024
PAPER_EFFICIENCY = 0.71
PAPER_WEIGHTS = 472_353
PAPER_STEP_SECONDS = 1 / PAPER_FOVS_PER_SECOND[1]


@dataclass(frozen=True)
class Cluster:
    """Equal nodes that train together.

    Parameters
    ----------
    inverse_survival : callable
        Distribution of the time that a node computes in a step, s.
    mean_seconds : float
        Mean step time of a single node without stragglers; efficiency is relative to it.
    network : Interconnect
        Between the nodes.
    num_bytes : float
        Size of the gradient that a node sends.
    fovs_per_step : int
        FOVs of each node.
    collective : str
        Operation that exchanges gradients.
    backup_workers : int
        A step waits for all but the slowest nodes, at most this many: as many as give the highest throughput.
    """

    inverse_survival: InverseSurvival
    mean_seconds: float
    network: Interconnect
    num_bytes: float
    fovs_per_step: int = 1
    collective: Literal["allreduce", "allgather"] = "allreduce"
    backup_workers: int = 0

    def step_seconds(self, num_nodes: int) -> float:
        """Return the expected time of a step of all nodes, s.

        Notes
        -----
        Assumes times that are independent between nodes and between steps.
        """
        return self._seconds_until(num_nodes, self._waited_for(num_nodes))

    def exchange_seconds(self, num_nodes: int) -> float:
        """Return the part of a step in which gradients are exchanged, s."""
        cost = ring_allgather_seconds if self.collective == "allgather" else ring_allreduce_seconds
        return cost(num_nodes, self.num_bytes, self.network)

    def fovs_per_second(self, num_nodes: int) -> float:
        """Return the throughput of all nodes; FOVs that a step did not wait for do not count."""
        waited_for = self._waited_for(num_nodes)
        return waited_for * self.fovs_per_step / self._seconds_until(num_nodes, waited_for)

    def efficiency(self, num_nodes: int) -> float:
        """Return the throughput relative to that of as many single nodes without stragglers."""
        return self.fovs_per_second(num_nodes) * self.mean_seconds / (num_nodes * self.fovs_per_step)

    def _seconds_until(self, num_nodes: int, waited_for: int) -> float:
        slowest = expected_order_statistic(self.inverse_survival, num_nodes, waited_for)
        return slowest + self.exchange_seconds(num_nodes)

    def _waited_for(self, num_nodes: int) -> int:
        """Return for how many nodes a step waits: the number with the highest throughput."""
        fewest = max(1, num_nodes - self.backup_workers)
        return max(range(fewest, num_nodes + 1), key=lambda waited: waited / self._seconds_until(num_nodes, waited))


def curve(cluster: Cluster, nodes: list[int]) -> dict[str, list[float]]:
    """Return throughput, efficiency and step time at these numbers of nodes, by the names of `Cluster`'s methods."""
    measures = (cluster.fovs_per_second, cluster.efficiency, cluster.step_seconds)
    return {measure.__name__: [measure(n) for n in nodes] for measure in measures}


def log_spread_for(cluster: Cluster, efficiency: float, num_nodes: int) -> float:
    """Return the spread of step times at which the model gives this efficiency.

    Parameters
    ----------
    cluster : Cluster
        A log-normal distribution with the same mean replaces its distribution.
    efficiency : float
        Target efficiency, below what the network alone allows.
    num_nodes : int
        Number of nodes at which to reach it.

    Returns
    -------
    float
        Standard deviation relative to the mean.
    """
    low, high = 1e-4, 3.0
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        times = StepTimes(0.0, 0.0, middle).scaled(cluster.mean_seconds)
        tried = replace(cluster, inverse_survival=times.inverse_survival).efficiency(num_nodes)
        low, high = (middle, high) if tried > efficiency else (low, middle)
    return StepTimes(0.0, 0.0, low).variation
