"""Print how long a gradient of each worker takes by the clock of `ffn study staleness`, without any training.

    python benchmarks/stragglers.py

Every run uses 40 gradients of each worker. Prints seconds for as many gradients as there are workers, mean and standard
deviation of ten seeds, with the step times of the paper's nodes over 10 Gb/s Ethernet.
"""

from __future__ import annotations

import heapq

import numpy as np

from ffn.studies.scaling import FLOAT_BYTES, NETWORKS, PAPER_STEP_SECONDS, PAPER_WEIGHTS
from ffn.studies.staleness import SPREAD, WAYS, VirtualCluster, rule_of

WORKERS = (2, 4, 8, 16, 64, 256)
GRADIENTS, SEEDS = 40, 10


def seconds(cluster: VirtualCluster, way: str, workers: int, seed: int) -> float:
    """Return the time of one gradient of each worker."""
    rule = rule_of(way, workers)
    cluster.begin(workers, way != "synchronous", seed)
    now, used, arriving, free = 0.0, 0, list[tuple[float, int, int]](), list(range(workers))
    while used < GRADIENTS * workers:
        for worker in free:
            computed = cluster.delivered("out", now) + cluster.compute_seconds(worker)
            heapq.heappush(arriving, (computed, worker, rule.version))
        computed, worker, version = heapq.heappop(arriving)
        now, waited = cluster.delivered("in", computed), rule.waiting
        if complete := rule.arrive(worker, version, worker):
            now, used = now + cluster.exchange_seconds, used + len(complete)
        free = sorted({*waited, worker} - rule.waiting)
    return now / used * workers


def main() -> None:
    """Print all of them."""
    times = PAPER_STEP_SECONDS * np.random.default_rng(1).lognormal(0, SPREAD, 1000)
    for stragglers in (0.02, 0.0):
        cluster = VirtualCluster(times, FLOAT_BYTES * PAPER_WEIGHTS, stragglers, NETWORKS["ethernet"])
        for workers in WORKERS:
            for way in WAYS:
                found = [seconds(cluster, way, workers, seed) for seed in range(SEEDS)]
                print(f"{stragglers:.0%} {workers:4} {way:12} {np.mean(found):.2f} ± {np.std(found, ddof=1):.2f} s")


if __name__ == "__main__":
    main()
