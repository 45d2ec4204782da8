"""Memory and time of jobs, as functions that Snakemake calls with a job's wildcards, threads and attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ffn.workflow.needs import agglomerating_mb, flooding_mb, flooding_minutes, memory_mb, minutes, takes_gpu
from ffn.workflow.pipeline import Pipeline

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


def memory(stage: str) -> Resource:
    """Memory of a stage's jobs by their threads, MB."""
    return by_attempt(lambda wildcards, threads: memory_mb(stage, threads=threads))


def resources_of(pipeline: Pipeline, rule: str) -> dict[str, Resource]:
    """Return memory and time of the jobs of a rule, which follow from `Jobs.spec`."""
    stage = rule.partition("_")[0]

    def megabytes(wildcards: Any, threads: int) -> int:
        job, model = pipeline.jobs.spec(rule, wildcards), pipeline.models.costed.flooding_model
        if stage == "segment":
            return flooding_mb(job.at_once, model, job.canvases)
        if stage == "agglomerate":
            return agglomerating_mb(pipeline.run.agglomeration, model, pipeline.gpus)
        return memory_mb(stage, job.at_once, threads)

    def duration(wildcards: Any, threads: int) -> int:
        voxels = pipeline.jobs.spec(rule, wildcards).voxels
        if stage in ("segment", "agglomerate"):
            on_gpu = pipeline.gpus > 0 and takes_gpu(pipeline.run.segment)
            return flooding_minutes(voxels, pipeline.models.costed.flooding_model, threads, on_gpu)
        return minutes(stage, voxels, threads)

    return {"mem_mb": by_attempt(megabytes), "runtime": by_attempt(duration)}
