"""A model of synchronous training: a step takes as long as the slowest node, plus a ring allreduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

# Dong et al. 2019, Fig. 3 and text: one and 1024 nodes of Theta (64-core Knights Landing), depth 9, FOV 33³, batch 1.
PAPER_FOVS_PER_SECOND = {1: 0.72, 1024: 523.0}
PAPER_NODES = 1024
PAPER_EFFICIENCY = 0.71
PAPER_WEIGHTS = 472_353
PAPER_STEP_SECONDS = 1 / PAPER_FOVS_PER_SECOND[1]

FLOAT_BYTES = 4
FASTEST = 1e-15  # s/byte; keeps the bandwidth finite if a fit has no slope


class Interconnect(NamedTuple):
    """The network between two neighbours of a ring."""

    latency: float
    bandwidth: float
    source: str
    constant: float = 0.0


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
LEAST_LATENCY = min(network.latency for network in NETWORKS.values())  # of a fitted network; our choice


def ring_allreduce_seconds(num_nodes: int, num_bytes: float, network: Interconnect) -> float:
    """Return the time of a ring allreduce: every node sends 2 (N - 1) messages of a share of the data.

    Source: Patarasuk & Yuan 2009, the algorithm of Horovod (Sergeev & Del Balso 2018).

    Examples
    --------
    >>> ring_allreduce_seconds(2, 1e6, Interconnect(latency=0.5, bandwidth=1e6, source=""))
    2.0
    """
    messages = 2 * (num_nodes - 1)
    return _ring_seconds(messages, num_bytes / num_nodes, network)


def ring_allgather_seconds(num_nodes: int, num_bytes: float, network: Interconnect) -> float:
    """Return the time of a ring allgather, N - 1 whole messages; compressed messages that cannot be added need it."""
    return _ring_seconds(num_nodes - 1, num_bytes, network)


def _ring_seconds(messages: int, num_bytes: float, network: Interconnect) -> float:
    """Return the time of messages of `num_bytes` one after the other, 0 if there are none."""
    return network.constant + messages * (network.latency + num_bytes / network.bandwidth) if messages else 0.0


def fit_network(num_nodes: np.ndarray, num_bytes: np.ndarray, seconds: np.ndarray) -> Interconnect:
    """Fit constant, latency and bandwidth to measured ring allreduces by least squares, none below zero.

    Rings of one size cannot separate constant and latency. The latency is then `LEAST_LATENCY`, the rest is constant.
    """
    from scipy.optimize import nnls

    messages, sizes = 2.0 * (num_nodes - 1), np.unique(num_nodes)
    design = np.stack([np.ones(len(seconds)), messages / num_nodes * num_bytes, messages], axis=1) / seconds[:, None]
    fitted = nnls(design if len(sizes) > 1 else design[:, :2], 1 - LEAST_LATENCY * design[:, 2])[0].tolist()
    constant, per_byte, more_latency = (*fitted, 0.0)[:3]
    source = f"{', '.join(map(str, sizes))} processes here" + ("" if len(sizes) > 1 else ", latency assumed")
    return Interconnect(LEAST_LATENCY + more_latency, 1 / max(per_byte, FASTEST), source, constant)


@dataclass(frozen=True)
class StepTimes:
    """Measured times of a step, ascending, s, and the share of steps that take at most as long.

    Of more nodes than measured steps, the slowest takes as long as the longest measured step.
    """

    seconds: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, seconds: np.ndarray) -> StepTimes:
        """Return the distribution in which each of the measured times is as likely as any other."""
        return cls(np.sort(seconds, axis=None), np.arange(1, seconds.size + 1) / seconds.size)

    @property
    def mean(self) -> float:
        """Mean time, s."""
        return self.expected(1, 1)

    @property
    def variation(self) -> float:
        """Standard deviation relative to the mean."""
        square = float(np.sum(self.seconds**2 * np.diff(self.share, prepend=0.0)))
        return float(np.sqrt(max(0.0, square - self.mean**2))) / self.mean

    def expected(self, num_nodes: int, rank: int) -> float:
        """Return the expected `rank`-th shortest of the times of independent nodes, `num_nodes` for the longest, s."""
        from scipy.special import betainc

        reached = betainc(rank, num_nodes - rank + 1, self.share)  # that at least `rank` take at most as long
        return float(np.sum(self.seconds * np.diff(reached, prepend=0.0)))

    def scaled(self, mean: float) -> StepTimes:
        """Return the same relative distribution with another mean, s."""
        return StepTimes(self.seconds * (mean / self.mean), self.share)

    def with_stragglers(self, rate: float, slowdown: float) -> StepTimes:
        """Return the distribution in which a fraction `rate` of the steps takes `slowdown` times as long."""
        seconds = np.concatenate([self.seconds, self.seconds * slowdown])
        weight = np.diff(self.share, prepend=0.0)
        weight, order = np.concatenate([weight * (1 - rate), weight * rate]), np.argsort(seconds)
        return StepTimes(seconds[order], np.minimum(np.cumsum(weight[order]), 1.0))


@dataclass(frozen=True)
class Cluster:
    """Equal nodes that train together.

    Efficiency is relative to `alone_seconds`, the mean step of a single node without stragglers. A step waits for all
    but the slowest `backup_workers`, or fewer, as gives the highest throughput.
    """

    times: StepTimes
    alone_seconds: float
    network: Interconnect
    num_bytes: float
    fovs_per_step: int = 1
    collective: Literal["allreduce", "allgather"] = "allreduce"
    backup_workers: int = 0

    def step_seconds(self, num_nodes: int) -> float:
        """Return the expected time of a step of all nodes, s.

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
        return self.fovs_per_second(num_nodes) * self.alone_seconds / (num_nodes * self.fovs_per_step)

    def _seconds_until(self, num_nodes: int, waited_for: int) -> float:
        slowest = self.times.expected(num_nodes, waited_for)
        return slowest + self.exchange_seconds(num_nodes)

    def _waited_for(self, num_nodes: int) -> int:
        """Return for how many nodes a step waits: the number with the highest throughput."""
        fewest = max(1, num_nodes - self.backup_workers)
        return max(range(fewest, num_nodes + 1), key=lambda waited: waited / self._seconds_until(num_nodes, waited))


def curve(cluster: Cluster, nodes: list[int]) -> dict[str, list[float]]:
    """Return throughput, efficiency and step time at these numbers of nodes, by the names of `Cluster`'s methods."""
    measures = (cluster.fovs_per_second, cluster.efficiency, cluster.step_seconds)
    return {measure.__name__: [measure(n) for n in nodes] for measure in measures}
