"""Memory and time of jobs, as functions that Snakemake calls with a job's wildcards, threads and attempt."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ffn.config import ModelConfig
from ffn.workflow.needs import flooding_mb, flooding_minutes, memory_mb, minutes

Voxels = int | Callable[[Any], int]  # a number, or a function of the wildcards
Resource = Callable[..., int]


def by_attempt(amount: int | Callable[[Any, int], int]) -> Resource:
    """Return a resource that doubles with every attempt, for jobs that were killed because they had too little.

    Parameters
    ----------
    amount : int or callable
        What the first attempt gets, or a function of wildcards and threads that returns it.

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


def flooding_memory(model: ModelConfig, voxels: Voxels) -> Resource:
    """Memory of jobs that flood-fill a box, MB."""
    return by_attempt(lambda wildcards, _: flooding_mb(_evaluated(voxels, wildcards), model))


def block_voxels(section: Any) -> int:
    """Return the voxels of a block of a stage, by its section of the configuration."""
    return math.prod(section.block_size_zyx)


def _evaluated(voxels: Voxels, wildcards: Any) -> int:
    return voxels(wildcards) if callable(voxels) else voxels
