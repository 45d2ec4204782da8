"""What an allreduce costs: latency and bandwidth of networks, and the ring algorithm."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

FLOAT_BYTES = 4
FASTEST = 1e-15  # s/byte; a fit without any slope is still a finite bandwidth


class Network(NamedTuple):
    """What joins two neighbours of a ring.

    Parameters
    ----------
    latency : float
        Of one message, s.
    bandwidth : float
        In one direction, bytes/s.
    source : str
        Where these figures come from.
    """

    latency: float
    bandwidth: float
    source: str


# Figures for one pair of nodes without other traffic: lower bounds of the cost, which is what the model needs to show
# what is *not* due to the network.
NETWORKS = {
    "aries": Network(
        1.3e-6, 10e9, "Cray XC Series Network, white paper WP-Aries01-1112 (2012): MPI between two nodes, approximately"
    ),
    "slingshot": Network(
        2.0e-6, 25e9, "200 Gb/s of a Slingshot 11 NIC; latency as in De Sensi et al. 2020 (SC'20), approximately"
    ),
    "ethernet": Network(30e-6, 1.25e9, "10 Gb/s of IEEE 802.3ae; a typical latency of MPI over TCP, our assumption"),
}


def ring_allreduce_seconds(num_nodes: int, num_bytes: float, network: Network) -> float:
    """Return the time of a ring allreduce: every node sends 2 (N - 1) messages of a share of the data.

    Parameters
    ----------
    num_nodes : int
        Nodes in the ring; one has nothing to send.
    num_bytes : float
        Data of each node.
    network : Network
        Joins the neighbours.

    Notes
    -----
    Source: Patarasuk & Yuan 2009, the algorithm of Horovod (Sergeev & Del Balso 2018).

    Examples
    --------
    >>> ring_allreduce_seconds(2, 1e6, Network(latency=0.5, bandwidth=1e6, source=""))
    2.0
    """
    messages = 2 * (num_nodes - 1)
    return messages * (network.latency + num_bytes / num_nodes / network.bandwidth)


def ring_allgather_seconds(num_nodes: int, num_bytes: float, network: Network) -> float:
    """Return the time of a ring allgather, which codecs need whose messages cannot be added: N - 1 whole messages."""
    return (num_nodes - 1) * (network.latency + num_bytes / network.bandwidth)


def fit_network(num_nodes: int, num_bytes: np.ndarray, seconds: np.ndarray) -> Network:
    """Fit latency and bandwidth to measured ring allreduces, neither below zero.

    Parameters
    ----------
    num_nodes : int
        Processes in the ring, at least 2.
    num_bytes : float ndarray of shape (N,)
        Data of each process.
    seconds : float ndarray of shape (N,)
        Times; every one counts by its relative error.
    """
    from scipy.optimize import nnls

    messages = 2.0 * (num_nodes - 1)
    design = np.stack([np.full(len(seconds), messages), messages / num_nodes * num_bytes], axis=1) / seconds[:, None]
    latency, per_byte = map(float, nnls(design, np.ones(len(seconds)))[0])
    return Network(latency, 1 / max(per_byte, FASTEST), f"{num_nodes} processes here")
