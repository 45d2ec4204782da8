"""The cost of an allreduce: latency and bandwidth of networks, and the ring algorithm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FLOAT_BYTES = 4
FASTEST = 1e-15  # s/byte; keeps the bandwidth finite if a fit has no slope


class Interconnect(NamedTuple):
    """The network between two neighbours of a ring.

    Parameters
    ----------
    latency : float
        Time of an empty message, s.
    bandwidth : float
        In one direction, bytes/s.
    source : str
        Source of these figures.
    constant : float, default 0
        Time of an exchange that does not depend on the number of nodes, s: the software around the ring.
    """

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

    Parameters
    ----------
    num_nodes : int
        Nodes in the ring; one has nothing to send.
    num_bytes : float
        Data of each node.
    network : Interconnect
        Between the neighbours.

    Notes
    -----
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

    Parameters
    ----------
    num_nodes : int ndarray of shape (N,)
        Processes in the ring, at least 2.
    num_bytes : float ndarray of shape (N,)
        Data of each process.
    seconds : float ndarray of shape (N,)
        Times; the fit minimises their relative errors.

    Notes
    -----
    Rings of one size cannot separate constant and latency. The latency is then `LEAST_LATENCY`, the rest is constant.
    """
    from scipy.optimize import nnls

    messages, sizes = 2.0 * (num_nodes - 1), np.unique(num_nodes)
    design = np.stack([np.ones(len(seconds)), messages / num_nodes * num_bytes, messages], axis=1) / seconds[:, None]
    fitted = nnls(design if len(sizes) > 1 else design[:, :2], 1 - LEAST_LATENCY * design[:, 2])[0].tolist()
    constant, per_byte, more_latency = (*fitted, 0.0)[:3]
    source = f"{', '.join(map(str, sizes))} processes here" + ("" if len(sizes) > 1 else ", latency assumed")
    return Interconnect(LEAST_LATENCY + more_latency, 1 / max(per_byte, FASTEST), source, constant)
