"""The training runs of a study: scores for each number of workers, learning rate and seed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.io.faults import unreadable
from ffn.training.metrics import SMOOTHING, read_metrics, smoothed

SCORES = ("accuracy", "f1", "precision", "recall")
PROCESSES = "processes"  # column that 'ffn study train' adds to the metrics
NAME = re.compile(r"workers-(?P<workers>\d+)(-rate-(?P<rate>[0-9.e+-]+))?-seed-(?P<seed>\d+)\.csv")


class Run(NamedTuple):
    """One training run; without a rate, at the best one for that number of workers.

    `seconds` is the training time up to each step; of several processes, without the time of exchanges. `smoothed`
    has the `SCORES` at each step.
    """

    workers: int
    rate: float | None
    seed: int
    step: np.ndarray
    seconds: np.ndarray
    smoothed: dict[str, np.ndarray]
    processes: int = 1

    @property
    def worker_seconds(self) -> float:
        """Mean time of a step of one worker, s. Those of a process take turns."""
        return float(self.seconds[-1] / self.step[-1] / (self.workers / self.processes))

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
    if parts is None:
        raise EvaluationError(f"{path}: found an unknown name, expected one such as workers-4-rate-0.001-seed-2.csv")
    if not path.is_file():
        raise EvaluationError(f"{path}: does not exist, expected output of 'ffn study train'")
    rows = read_metrics(path)
    missing = [name for name in ("step", "seconds", *SCORES) if rows and name not in rows[0]]
    if missing:
        raise EvaluationError(f"{path}: has no column {missing[0]}, expected output of 'ffn study train'")
    step, processes = np.array([int(row["step"]) for row in rows]), int(rows[-1].get(PROCESSES, 1)) if rows else 1
    seconds = np.array([row["seconds"] for row in rows], np.float64)
    if processes > 1:
        seconds -= np.cumsum([row["allreduce_ms"] for row in rows] * np.diff(step, prepend=0)) / 1000
    rate = None if parts["rate"] is None else float(parts["rate"])
    curves = {name: smoothed(np.array([row[name] for row in rows], np.float64), SMOOTHING) for name in SCORES}
    return Run(int(parts["workers"]), rate, int(parts["seed"]), step, seconds, curves, processes)


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
