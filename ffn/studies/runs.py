"""The training runs of the studies: one run at a learning rate, and the scores of all of them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import DivergenceError, EvaluationError
from ffn.io import atomic
from ffn.io.faults import unreadable
from ffn.machine.launchers import launched_rank
from ffn.model.choice import FOLDER
from ffn.training.metrics import SMOOTHING, read_metrics, smoothed
from ffn.training.plan import Training
from ffn.training.train import train

SCORES = ("accuracy", "f1", "precision", "recall")
NAME = re.compile(r"workers-(?P<workers>\d+)(-rate-(?P<rate>[0-9.e+-]+))?-seed-(?P<seed>\d+)\.csv")

log = logging.getLogger(__name__)


def train_point(training: Training, runs_folder: str, out_path: str, rates_path: str | None = None) -> None:
    """Train, or resume training, and write the metrics; a run that diverges ends early, which is also a result.

    All processes call this.

    Parameters
    ----------
    training : Training
        Processes times virtual workers is the number of workers.
    runs_folder : str
        Folder for the model folder, which is named after workers, rate and seed.
    out_path : str
        CSV file to write.
    rates_path : str, optional
        Output of the study of the learning rate; its best rate replaces that of `training`.
    """
    config = training.config
    workers = config.num_workers * config.virtual_workers
    if rates_path is not None:
        rates = best_rates(rates_path)
        if workers not in rates:
            raise EvaluationError(f"--workers: found {workers}, expected one of those in {rates_path}: {sorted(rates)}")
        config = config.model_copy(update={"learning_rate": rates[workers]})
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
        atomic.write_text(out_path, (folder / "metrics.csv").read_text())


class Run(NamedTuple):
    """One training run; without a rate, at the best one for that number of workers.

    `smoothed` has the `SCORES` at each step.
    """

    workers: int
    rate: float | None
    seed: int
    step: np.ndarray
    smoothed: dict[str, np.ndarray]

    def at(self, name: str, step: int) -> float:
        """Return the last smoothed score up to a step; NaN if training diverged before it.

        A row has no score if no walk has ended since the previous row.
        """
        known = self.smoothed[name][(self.step <= step) & np.isfinite(self.smoothed[name])]
        return float(known[-1]) if step in self.step and len(known) else float("nan")


def read_runs(paths: list[str]) -> list[Run]:
    """Read metrics files such as ``workers-4-rate-0.001-seed-2.csv``; a run that ends early has diverged."""
    return [_read_run(Path(path)) for path in paths]


def _read_run(path: Path) -> Run:
    parts = NAME.fullmatch(path.name)
    expected = "output of 'ffn study train', named such as workers-4-rate-0.001-seed-2.csv"
    if parts is None or not path.is_file():
        raise EvaluationError(f"{path}: is no such file, expected {expected}")
    with unreadable(path, expected, EvaluationError):
        rows = read_metrics(path)
        step = np.array([row["step"] for row in rows], np.int64)
        curves = {name: smoothed(np.array([row[name] for row in rows], np.float64), SMOOTHING) for name in SCORES}
    rate = None if parts["rate"] is None else float(parts["rate"])
    return Run(int(parts["workers"]), rate, int(parts["seed"]), step, curves)


def best_rates(study_path: str) -> dict[int, float]:
    """Return the best tried rate by number of workers, from the output of the study of the learning rate."""
    with unreadable(study_path, "output of 'ffn study learning-rate'", EvaluationError):
        rates = json.loads(Path(study_path).read_text())["best_rates"]
        return {int(workers): float(rate) for workers, rate in rates.items()}


def runs_at_best(runs: list[Run], rates: dict[int, float]) -> dict[int, list[Run]]:
    """Return the runs at the best learning rate of each number of workers, one for each seed, at least two."""
    found: dict[int, list[Run]] = {}
    for workers, rate in rates.items():
        seeds = {run.seed: run for run in runs if run.workers == workers and run.rate in (rate, None)}
        if len(seeds) < 2:  # too few for a standard deviation
            raise EvaluationError(
                f"study: {len(seeds)} runs of {workers} workers at rate {rate:g}, expected at least two seeds"
            )
        found[workers] = [seeds[seed] for seed in sorted(seeds)]
    return found
