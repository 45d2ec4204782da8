"""Print how long a gradient of each worker takes by the clock of `ffn study staleness`, without any training.

    python benchmarks/stragglers.py

Every run uses 40 gradients of each worker. Prints seconds for as many gradients as there are workers, mean and standard
deviation of ten seeds, with the step times of the paper's nodes over 10 Gb/s Ethernet.
"""

from __future__ import annotations

import numpy as np

from ffn.studies.scaling import Cluster, cluster_of
from ffn.studies.staleness import WAYS, VirtualCluster

WORKERS = (2, 4, 8, 16, 64, 256)
GRADIENTS, SEEDS = 40, 10


def seconds(nodes: Cluster, stragglers: float, way: str, workers: int, seed: int) -> float:
    """Return the time of one gradient of each worker."""
    cluster = VirtualCluster(nodes, stragglers, way, workers, seed)
    now, used, free = 0.0, 0, list(range(workers))
    while used < GRADIENTS * workers:
        for worker in free:
            cluster.begin(worker, now, None)
        now, complete, free = cluster.next()
        used += len(complete or ())
    return now / used * workers


def main() -> None:
    """Print all of them."""
    nodes = cluster_of(None, "ethernet")
    for stragglers in (0.02, 0.0):
        for workers in WORKERS:
            for way in WAYS:
                found = [seconds(nodes, stragglers, way, workers, seed) for seed in range(SEEDS)]
                print(f"{stragglers:.0%} {workers:4} {way:12} {np.mean(found):.2f} ± {np.std(found, ddof=1):.2f} s")


if __name__ == "__main__":
    main()
