"""Trainings for the studies: runs at a learning rate, and step times of real processes. Every process calls these."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np

from ffn.errors import DivergenceError, EvaluationError
from ffn.io import atomic, hdf5
from ffn.machine.launchers import launched_rank
from ffn.model.choice import FOLDER
from ffn.model.network import num_weights
from ffn.progress import track
from ffn.studies.config import WARM_UP_STEPS
from ffn.studies.runs import PROCESSES, best_rates
from ffn.training.choice import make_learner, make_patches
from ffn.training.config import TrainConfig
from ffn.training.optimizers import learning_rate
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import Training, TrainingPlan
from ffn.training.train import train, training_job, with_engine
from ffn.training.walk import LaneWalks, Prefetcher

log = logging.getLogger(__name__)


def train_point(training: Training, runs_folder: str, out_path: str, rates_path: str | None = None) -> None:
    """Train, or resume training, and write the metrics; a run that diverges ends early, which is also a result.

    Parameters
    ----------
    training : Training
        Processes times virtual workers is the number of workers.
    runs_folder : str
        Folder for the model folder, which is named after workers, rate and seed.
    out_path : str
        CSV file to write: the metrics, and the number of processes that shared out the workers.
    rates_path : str, optional
        Output of the study of the learning rate; its best rate replaces that of `training`.
    """
    config = training.config
    workers = config.num_workers * config.virtual_workers
    if rates_path is not None:
        config = config.model_copy(update={"learning_rate": best_rate(rates_path, workers)})
    folder = Path(runs_folder) / f"workers-{workers}-rate-{config.learning_rate!r}-seed-{training.rng_seed}"
    try:
        train(training._replace(config=config), str(folder), machine=f"{runs_folder}/{FOLDER}")
    except DivergenceError as error:
        log.warning("%s", error)
    except SystemExit as end:  # of another rank, where rank 0 has the error
        if not isinstance(end.__cause__, DivergenceError):
            raise
    launch = launched_rank()
    if launch is None or launch.rank == 0:
        header, *rows = (folder / "metrics.csv").read_text().splitlines()
        lines = [f"{header},{PROCESSES}", *(f"{row},{config.num_workers}" for row in rows)]
        atomic.write_text(out_path, "".join(f"{line}\n" for line in lines))


def best_rate(study_path: str, workers: int) -> float:
    """Return the best tried rate for a number of workers, from a study's output."""
    rates = best_rates(study_path)
    if workers not in rates:
        raise EvaluationError(f"--workers: found {workers}, expected one of those in {study_path}: {sorted(rates)}")
    return rates[workers]


def measure(training: Training, out_path: str, num_steps: int) -> None:
    """Train new weights for some steps and record how long each takes on each process.

    Rank 0 writes an HDF5 file: ``compute_seconds`` (everything that a process does without the others) and
    ``allreduce_seconds``, float64 (processes, steps).
    """
    config = training.config
    _keep_to_cores(config)
    steps = WARM_UP_STEPS + num_steps  # also where the run itself does not train
    config = config.model_copy(update={"max_steps": max(steps, config.max_steps)})
    with training_job(training._replace(config=config)) as (group, plan, _):
        plan.load_records(group)
        plan = with_engine(plan, Path(out_path).with_name(FOLDER), group)
        seconds = _step_seconds(plan, group, num_steps)
        compute, allreduce = (np.stack(rows) for rows in zip(*group.gather(seconds), strict=True))
        if group.rank == 0:
            arrays = {"compute_seconds": compute, "allreduce_seconds": allreduce}
            attributes: dict[str, str | int | float] = {
                "processes": group.size,
                "fovs_per_step": config.batch_size * config.virtual_workers,
                "num_weights": num_weights(training.model),
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
        walks = LaneWalks(prefetcher, at, make_patches(learner, plan.initial.config, plan.train))
        steps = range(WARM_UP_STEPS + num_steps)
        for step in track(steps, len(steps), "measure", unit="step") if group.rank == 0 else steps:
            started = time.perf_counter()
            group.beat()
            outcome = learner.step(walks.batch(), learning_rate(plan.train, step))
            walks.proceed(outcome)
            float(outcome.gradient_norm)  # waits for the update
            times.append((time.perf_counter() - started - outcome.allreduce_seconds, outcome.allreduce_seconds))
    compute, allreduce = np.array(times[WARM_UP_STEPS:]).T
    return compute, allreduce
