"""Memory and time of jobs, as functions that Snakemake calls with a job's wildcards, threads and attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ffn.config import PART_VOXELS, Agglomeration, FloodConfig, ModelConfig
from ffn.inference.lanes import MOST_CANVASES
from ffn.model.choice import ON_GPUS
from ffn.workflow.needs import agglomerating_mb, flooding_mb, flooding_minutes, memory_mb, minutes

Voxels = int | Callable[[Any], int]  # a number, or a function of the wildcards
Resource = Callable[..., int]


def by_attempt(amount: int | Callable[[Any, int], int]) -> Resource:
    """Return a resource that doubles with every attempt, for jobs that were killed because they had too little.

    Examples
    --------
    >>> by_attempt(10)(None, threads=1, attempt=3)
    40
    """

    def doubled(wildcards: Any, threads: int, attempt: int) -> int:
        first = amount(wildcards, threads) if callable(amount) else amount
        return first * 2 ** (attempt - 1)

    return doubled


def memory(stage: str, voxels: Voxels = 0) -> Resource:
    """Memory of a stage's jobs by the voxels that they hold at once and their threads, MB."""
    return by_attempt(lambda wildcards, threads: memory_mb(stage, _evaluated(voxels, wildcards), threads))


def duration(stage: str, voxels: Voxels) -> Resource:
    """Time of a stage's jobs by the voxels of their whole box and their threads, minutes."""
    return by_attempt(lambda wildcards, threads: minutes(stage, _evaluated(voxels, wildcards), threads))


def flooding(model: ModelConfig, voxels: Voxels) -> Resource:
    """Time of jobs that run the network over a box, minutes."""
    return by_attempt(lambda wildcards, threads: flooding_minutes(_evaluated(voxels, wildcards), model, threads))


def flooding_memory(model: ModelConfig, voxels: Voxels, canvases: Voxels = 1) -> Resource:
    """Memory of jobs that flood-fill a box, or several at once, by the voxels of the largest, MB."""

    def megabytes(wildcards: Any, threads: int) -> int:
        return flooding_mb(_evaluated(voxels, wildcards), model, _evaluated(canvases, wildcards))

    return by_attempt(megabytes)


def agglomeration_memory(model: ModelConfig, config: Agglomeration, gpus: int) -> Resource:
    """Memory of jobs that judge contacts, MB."""
    beyond = model.fov_radius_zyx if config.mirror else (0, 0, 0)
    window = math.prod(2 * (radius + more) + 1 for radius, more in zip(config.window_radius_zyx, beyond, strict=True))
    return by_attempt(agglomerating_mb(PART_VOXELS, window, model, most_canvases(config, gpus)))


def most_canvases(config: FloodConfig, gpus: int) -> int:
    """Return how many canvases a job may have, on machines with this number of GPUs."""
    if config.canvases != "auto":
        return config.canvases
    return MOST_CANVASES if gpus else 1


def takes_gpu(config: FloodConfig) -> bool:
    """Whether a job may compute on a GPU, if it sees one."""
    return config.engine == "auto" or config.engine in ON_GPUS


def threads_of(num_jobs: int, cores: int, gpus: int) -> int:
    """Return the cores for each of some jobs that share those of a machine, and its GPUs if they take one each.

    Examples
    --------
    >>> threads_of(4, 16, 0), threads_of(4, 16, 1), threads_of(1, 16, 2), threads_of(99, 16, 0), threads_of(0, 16, 0)
    (4, 16, 16, 1, 16)
    """
    at_a_time = min(num_jobs, gpus) if gpus else num_jobs
    return max(1, cores // max(1, at_a_time))


def _evaluated(voxels: Voxels, wildcards: Any) -> int:
    return voxels(wildcards) if callable(voxels) else voxels
