"""A model of synchronous training: a step takes as long as the slowest node, plus a ring allreduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Dong et al. 2019, Fig. 3 and text: one and 1024 nodes of Theta (64-core Knights Landing), depth 9, FOV 33³, batch 1.
PAPER_FOVS_PER_SECOND = {1: 0.72, 1024: 523.0}
PAPER_NODES = 1024
PAPER_EFFICIENCY = 0.71
PAPER_WEIGHTS = 472_353
PAPER_STEP_SECONDS = 1 / PAPER_FOVS_PER_SECOND[1]

FLOAT_BYTES = 4


class Interconnect(NamedTuple):
    """The network between two neighbours of a ring."""

    latency: float
    bandwidth: float
    source: str


# Figures for one pair of nodes without other traffic: lower bounds of the cost, as the model needs to show which losses
# are *not* due to the network.
NETWORKS = {
    "aries": Interconnect(
        1.3e-6, 10e9, "Cray XC Series Network, white paper WP-Aries01-1112 (2012): MPI between two nodes, approximately"
    ),
    "slingshot": Interconnect(
        2.0e-6, 25e9, "200 Gb/s of a Slingshot 11 NIC; latency as in De Sensi et al. 2020 (SC'20), approximately"
    ),
    "ethernet": Interconnect(
        30e-6, 1.25e9, "10 Gb/s of IEEE 802.3ae; a typical latency of MPI over TCP, our assumption"
    ),
}


def ring_allreduce_seconds(num_nodes: int, num_bytes: float, network: Interconnect) -> float:
    """Return the time of a ring allreduce: every node sends 2 (N - 1) messages of a share of the data.

    Source: Patarasuk & Yuan 2009, the algorithm of Horovod (Sergeev & Del Balso 2018).

    Examples
    --------
    >>> ring_allreduce_seconds(2, 1e6, Interconnect(latency=0.5, bandwidth=1e6, source=""))
    2.0
    """
    return 2 * (num_nodes - 1) * (network.latency + num_bytes / num_nodes / network.bandwidth)


@dataclass(frozen=True)
class Cluster:
    """Equal nodes that train together, as fast as one node was measured.

    Each of the measured times of a step is as likely as any other, independently between nodes and between steps. Of
    more nodes than measured steps, the slowest takes about as long as the longest measured step.
    """

    times: np.ndarray  # s
    network: Interconnect
    num_bytes: float
    fovs_per_step: int = 1

    @property
    def alone_seconds(self) -> float:
        """Mean step of a single node, s."""
        return float(self.times.mean())

    @property
    def variation(self) -> float:
        """Standard deviation of the times relative to their mean."""
        return float(self.times.std()) / self.alone_seconds

    def slowest_seconds(self, num_nodes: int) -> float:
        """Return the expected step of the slowest node, s."""
        share = np.arange(self.times.size + 1) / self.times.size
        return float(np.sum(np.sort(self.times, axis=None) * np.diff(share**num_nodes)))

    def exchange_seconds(self, num_nodes: int) -> float:
        """Return the part of a step in which gradients are exchanged, s."""
        return ring_allreduce_seconds(num_nodes, self.num_bytes, self.network)

    def step_seconds(self, num_nodes: int) -> float:
        """Return the expected time of a step of all nodes, s."""
        return self.slowest_seconds(num_nodes) + self.exchange_seconds(num_nodes)

    def fovs_per_second(self, num_nodes: int) -> float:
        """Return the throughput of all nodes."""
        return num_nodes * self.fovs_per_step / self.step_seconds(num_nodes)

    def efficiency(self, num_nodes: int) -> float:
        """Return the throughput relative to that of as many single nodes."""
        return self.alone_seconds / self.step_seconds(num_nodes)


def curve(cluster: Cluster, nodes: list[int]) -> dict[str, list[float]]:
    """Return throughput, efficiency and step time at these numbers of nodes, by the names of `Cluster`'s methods."""
    measures = (cluster.fovs_per_second, cluster.efficiency, cluster.step_seconds)
    return {measure.__name__: [measure(n) for n in nodes] for measure in measures}
