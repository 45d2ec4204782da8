"""The training runs of a study: scores for each number of workers, learning rate and seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.training.monitoring.metrics import MetricsRow, read_metrics, smoothed

SCORES = ("accuracy", "f1", "precision", "recall")
PROCESSES = "processes"  # column that 'ffn study train' adds to the metrics; those of earlier versions lack it
NAME = re.compile(r"workers-(?P<workers>\d+)(-rate-(?P<rate>[0-9.e+-]+))?-seed-(?P<seed>\d+)\.csv")


class Run(NamedTuple):
    """One training run.

    Parameters
    ----------
    workers : int
        Number of workers.
    rate : float or None
        Learning rate; None stands for the best one for that number of workers.
    seed : int
        Seed of everything random.
    step : int ndarray of shape (N,)
        Steps with scores.
    seconds : float ndarray of shape (N,)
        Training time up to each step, s. Of several processes, what they wait for and exchange is left out.
    raw, smoothed : dict of str to float ndarray of shape (N,)
        Scores by name, see `SCORES`.
    processes : int, default 1
        Processes that shared out the workers.
    """

    workers: int
    rate: float | None
    seed: int
    step: np.ndarray
    seconds: np.ndarray
    raw: dict[str, np.ndarray]
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

    def noise(self, name: str, factor: float) -> float:
        """Return the standard deviation of the last smoothed score, estimated from the scatter of its rows.

        Notes
        -----
        Assume independent rows of variance σ² around a steadily rising curve. The average weights the row k steps back
        by (1 - f) f^k, so its variance is (1 - f)² σ² Σ f^2k = σ² (1 - f) / (1 + f), that of (1 + f) / (1 - f) rows. A
        row is independent of the previous average, so their difference has variance σ² + σ² (1 - f) / (1 + f) =
        2 σ² / (1 + f). The variance of the average is (1 - f) / 2 of that.
        """
        known = np.isfinite(self.raw[name])
        differences = self.raw[name][known][1:] - self.smoothed[name][known][:-1]
        recent = differences[-max(3, round((1 + factor) / (1 - factor))) :]
        return float(np.std(recent) * np.sqrt((1 - factor) / 2)) if len(recent) > 2 else float("nan")


def read_runs(paths: list[str], factor: float) -> list[Run]:
    """Read metrics files, whose names give workers, rate and seed.

    Parameters
    ----------
    paths : list of str
        Files such as ``workers-4-rate-0.001-seed-2.csv``; without a rate, it is the best one.
    factor : float
        Weight of the past in the smoothed scores.

    Raises
    ------
    EvaluationError
        If a file is missing, or its name or columns are not as expected.
    """
    return [_read_run(Path(path), factor) for path in paths]


def read_rows(path: Path, columns: Sequence[str]) -> tuple[re.Match[str], list[MetricsRow]]:
    """Return what the name of a metrics file says, and its rows, which have at least these columns.

    Raises
    ------
    EvaluationError
        See `read_runs`.
    """
    parts = NAME.fullmatch(path.name)
    if parts is None:
        raise EvaluationError(f"{path}: found an unknown name, expected one such as workers-4-rate-0.001-seed-2.csv")
    if not path.is_file():
        raise EvaluationError(f"{path}: does not exist, expected output of 'ffn study train'")
    rows = read_metrics(path)
    missing = [name for name in columns if rows and name not in rows[0]]
    if missing:
        raise EvaluationError(f"{path}: has no column {missing[0]}, expected output of 'ffn study train'")
    return parts, rows


def _read_run(path: Path, factor: float) -> Run:
    parts, rows = read_rows(path, ("step", "seconds", *SCORES))
    raw = {name: np.array([row[name] for row in rows], np.float64) for name in SCORES}
    step, processes = np.array([int(row["step"]) for row in rows]), int(rows[-1].get(PROCESSES, 1)) if rows else 1
    seconds = np.array([row["seconds"] for row in rows], np.float64)
    if processes > 1:
        seconds -= np.cumsum([row["allreduce_ms"] for row in rows] * np.diff(step, prepend=0)) / 1000
    return Run(
        int(parts["workers"]),
        None if parts["rate"] is None else float(parts["rate"]),
        int(parts["seed"]),
        step,
        seconds,
        raw,
        {name: smoothed(values, factor) for name, values in raw.items()},
        processes,
    )


def runs_at_best(runs: list[Run], best_rates: dict[int, float]) -> dict[int, list[Run]]:
    """Return the runs at the best learning rate of each number of workers, one for each seed.

    Parameters
    ----------
    runs : list of Run
        Runs of the grid and of further seeds.
    best_rates : dict of int to float
        Best learning rate by number of workers.

    Raises
    ------
    EvaluationError
        If there are fewer than two, too few for a standard deviation.
    """
    found: dict[int, list[Run]] = {}
    for workers, rate in best_rates.items():
        seeds = {run.seed: run for run in runs if run.workers == workers and run.rate in (rate, None)}
        if len(seeds) < 2:
            raise EvaluationError(
                f"study: {len(seeds)} runs of {workers} workers at rate {rate:g}, expected at least two seeds"
            )
        found[workers] = [seeds[seed] for seed in sorted(seeds)]
    return found
