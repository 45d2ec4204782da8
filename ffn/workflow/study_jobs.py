"""The training runs of the studies: network, options, and the processes that share out the workers of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ffn.config import ModelConfig
from ffn.studies.config import NUM_ROWS, WARM_UP_STEPS
from ffn.training.config import SYNCHRONOUS, TrainConfig, fine_tuning_defaults
from ffn.workflow.needs import training_mb, training_minutes
from ffn.workflow.pipeline import by_attempt
from ffn.workflow.rank_layout import Layout, layout_of
from ffn.workflow.run import RunConfig

LEAST_MEASURING = 60  # minutes to ask for; our choice


class StudyJob(NamedTuple):
    """The job of one training run: options, processes on nodes, cores of a process or the whole job, memory, time.

    Cores are those of a process where a launcher starts them on a cluster. Memory is that of a node, in MB.
    """

    train: TrainConfig
    layout: Layout
    threads: int
    mb: int
    minutes: int


def study_model(run: RunConfig) -> ModelConfig:
    """Return the network that the studies train."""
    own = {"depth": run.study.depth, "features": run.study.features}
    return run.model.model_copy(update={name: value for name, value in own.items() if value is not None})


def study_train(run: RunConfig) -> TrainConfig:
    """Return the options of a training run with one worker: everything else is as in section ``train``.

    The runs start from new weights, so options that follow from `init` have their usual defaults.
    """
    tuning = fine_tuning_defaults(run.train, is_validated=False) if run.init else {}
    own = {
        **{name: run.train.defaults()[name] for name in tuning if getattr(run.train, name) == tuning[name]},
        "num_workers": 1,
        "virtual_workers": 1,
        "batch_size": 1,
        **SYNCHRONOUS,
        "max_steps": run.study.steps,
        "log_steps": max(1, run.study.steps // NUM_ROWS),
        "scaling_rule": "constant",
        "schedule": "cyclic" if run.train.schedule == "cyclic" else "constant",
        "on_row": None,
        "validation_steps": 0,
        "validation_examples": 1,
        "use_best": False,
        "intra_op_threads": min(1, run.train.intra_op_threads),
    }
    return run.train.model_copy(update=own)


def study_job(
    run: RunConfig, one: TrainConfig, workers: int, site: Mapping[str, object], cores: int, voxels: list[int]
) -> StudyJob:
    """Return the job of a training run with that many workers, which at most `study.ranks` processes share evenly.

    `one` has the options with one worker, `site` is where the profile starts ranks, `cores` may be used here, and
    `voxels` are those of each volume that training reads.
    """
    ranks = max(n for n in range(1, min(workers, run.study.ranks) + 1) if workers % n == 0)
    layout, on_cluster = layout_of(ranks, site, cores), "launcher" in site
    each = layout.depth if on_cluster and ranks > 1 else 1  # here, runs go side by side
    train = one.model_copy(update={"num_workers": ranks, "virtual_workers": workers // ranks})
    if ranks > 1:
        train = train.model_copy(update={"intra_op_threads": each})
    model = study_model(run)
    return StudyJob(
        train,
        layout,
        each if on_cluster else min(cores, ranks),
        training_mb(model, train, layout.per_node, voxels),
        training_minutes(model, train, each),
    )


def measuring_minutes(run: RunConfig, train: TrainConfig, threads: int) -> int:
    """Return the time to ask for to measure step times, which a killed job begins again."""
    steps = WARM_UP_STEPS + run.study.measured_steps
    return max(LEAST_MEASURING, training_minutes(run.model, train.model_copy(update={"max_steps": steps}), threads))


def study_resources(jobs: Mapping[str, StudyJob], gpus: int) -> dict[str, Callable[..., Any]]:
    """Return the resources of training runs by their number of workers, with this number of GPUs in a node."""

    def of(figure: Callable[[StudyJob], Any]) -> Callable[[Any], Any]:
        return lambda wildcards: figure(jobs[wildcards.workers])

    return {
        "mem_mb": by_attempt(lambda wildcards, threads: jobs[wildcards.workers].mb),
        "runtime": by_attempt(lambda wildcards, threads: jobs[wildcards.workers].minutes),
        "nodes": of(lambda job: job.layout.nodes),
        "tasks": of(lambda job: job.layout.ranks),
        "gpu": of(lambda job: min(job.layout.per_node, gpus)),
        "mpi": of(lambda job: job.layout.command),
    }
