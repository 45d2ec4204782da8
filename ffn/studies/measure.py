"""Step times of real processes for the study of scaling; a launcher starts this in every process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from ffn.config import ModelConfig
from ffn.io import hdf5
from ffn.model.choice import FOLDER
from ffn.model.network import num_weights
from ffn.progress import track
from ffn.studies.config import WARM_UP_STEPS
from ffn.studies.networks import FLOAT_BYTES
from ffn.training.config import TrainConfig
from ffn.training.data.prefetch import Prefetcher
from ffn.training.lane_walks import LaneWalks
from ffn.training.learners import make_learner
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import TrainingData, TrainingPlan
from ffn.training.schedule import learning_rate
from ffn.training.train import training_job, with_engine

MESSAGE_SIZES = (2**8, 2**12, 2**15, 2**17, 2**19, 2**20, 2**21)  # values; this network's gradient lies in between
MESSAGES_PER_SIZE = 30


def measure(
    data: TrainingData, out_path: str, model: ModelConfig, config: TrainConfig, num_steps: int, rng_seed: int
) -> None:
    """Train for some steps and record how long each takes on each process, and how long a sum over all takes.

    Parameters
    ----------
    data : TrainingData
        Records and volumes.
    out_path : str
        HDF5 file that rank 0 writes: ``compute_seconds`` and ``allreduce_seconds``, float64 (processes, steps);
        ``message_bytes`` (sizes,) and ``message_seconds`` (sizes, repeats). ``compute_seconds`` is the time of
        everything that a process does without the others.
    model : ModelConfig
        Architecture; training starts from new weights.
    config : TrainConfig
        Options.
    num_steps : int
        Steps to measure, after `WARM_UP_STEPS`.
    rng_seed : int
        Seed of everything random.

    Raises
    ------
    FfnError
        If data, model or options do not fit together.
    """
    _keep_to_cores(config)
    steps = WARM_UP_STEPS + num_steps  # also where the run itself does not train
    config = config.model_copy(update={"max_steps": max(steps, config.max_steps)})
    with training_job(data, model, config, rng_seed) as (group, plan, _):
        plan.load_records(group)
        plan = with_engine(plan, Path(out_path).with_name(FOLDER), group)
        seconds = _step_seconds(plan, group, num_steps)
        messages = _message_seconds(group)
        compute, allreduce = (np.stack(rows) for rows in zip(*group.gather(seconds), strict=True))
        if group.rank == 0:
            arrays = {"compute_seconds": compute, "allreduce_seconds": allreduce, "message_seconds": messages}
            arrays["message_bytes"] = np.array(MESSAGE_SIZES, np.int64) * FLOAT_BYTES
            attributes: dict[str, str | int | float] = {
                "processes": group.size,
                "fovs_per_step": config.batch_size * config.virtual_workers,
                "num_weights": num_weights(model),
                "precision": plan.train.precision,
            }
            hdf5.write_arrays(out_path, arrays, attributes)
        group.barrier()


def _keep_to_cores(config: TrainConfig) -> None:
    """Restrict a single process to as many cores as it has threads, as if there were others."""
    cores = sorted(os.sched_getaffinity(0))
    if config.num_workers == 1 and 0 < config.intra_op_threads < len(cores):
        os.sched_setaffinity(0, cores[: config.intra_op_threads])


def _step_seconds(plan: TrainingPlan, group: ProcessGroup, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds that this process computed and averaged, for every step."""
    at = dict.fromkeys(plan.lanes(group.rank), 0)
    times = []
    with Prefetcher(plan.example_source(plan.lanes(group.rank)), at) as prefetcher:
        learner = make_learner(plan.initial.config, plan.train, plan.initial.weights, group, plan.rng_seed)
        walks = LaneWalks(prefetcher, at, plan.initial.config, plan.train)
        steps = range(WARM_UP_STEPS + num_steps)
        for step in track(steps, len(steps), "measure", unit="step") if group.rank == 0 else steps:
            started = time.perf_counter()
            group.beat()
            outcome = learner.step(walks.batch(), learning_rate(plan.train, step))
            walks.proceed(outcome)
            times.append((time.perf_counter() - started - outcome.allreduce_seconds, outcome.allreduce_seconds))
    compute, allreduce = np.array(times[WARM_UP_STEPS:]).T
    return compute, allreduce


def _message_seconds(group: ProcessGroup) -> np.ndarray:
    """Return the seconds that sums of `MESSAGE_SIZES` values take from when the last process joins them.

    Returns
    -------
    float64 ndarray of shape (sizes, `MESSAGES_PER_SIZE`)
        The shortest wait of all processes, which is that of the last one to join.
    """
    import tensorflow as tf

    total = tf.function(group.total, reduce_retracing=True)
    own = np.empty((len(MESSAGE_SIZES), MESSAGES_PER_SIZE))
    for i, size in enumerate(MESSAGE_SIZES):
        vector = tf.ones((1, size))
        total(vector)
        for j in range(MESSAGES_PER_SIZE):
            group.beat()
            started = time.perf_counter()
            total(vector).numpy()
            own[i, j] = time.perf_counter() - started
    return np.min(group.gather(own), axis=0)
