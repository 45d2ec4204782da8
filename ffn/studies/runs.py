"""The training runs of a study: their scores by workers, learning rate and seed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.training.monitoring.metrics import read_metrics, smoothed

SCORES = ("accuracy", "f1", "precision", "recall")
NAME = re.compile(r"workers-(?P<workers>\d+)(-rate-(?P<rate>[0-9.e+-]+))?-seed-(?P<seed>\d+)\.csv")


class Run(NamedTuple):
    """One training run.

    Parameters
    ----------
    workers : int
        Number of workers that it was trained as.
    rate : float or None
        Learning rate; None is the best one of that number of workers.
    seed : int
        Seed of everything random.
    step : int ndarray of shape (N,)
        Steps with scores.
    seconds : float ndarray of shape (N,)
        Training time until then, s.
    raw, smoothed : dict of str to float ndarray of shape (N,)
        Each of `SCORES`.
    """

    workers: int
    rate: float | None
    seed: int
    step: np.ndarray
    seconds: np.ndarray
    raw: dict[str, np.ndarray]
    smoothed: dict[str, np.ndarray]

    def at(self, name: str, step: int) -> float:
        """Return the last smoothed score up to a step; NaN if training diverged before.

        A row has none where no walk ended since the row before.
        """
        known = self.smoothed[name][(self.step <= step) & np.isfinite(self.smoothed[name])]
        return float(known[-1]) if step in self.step and len(known) else float("nan")

    def noise(self, name: str, factor: float) -> float:
        """Return how uncertain the last smoothed score is, from how the rows that it averages differ from the past.

        Notes
        -----
        Let rows be independent, of variance σ² around a curve that rises steadily. The average weighs the k-th row
        before by (1 - f) f^k, so its variance is (1 - f)² σ² Σ f^2k = σ² (1 - f) / (1 + f): it is worth
        (1 + f) / (1 - f) rows. A row is independent of the average before it, so their difference has the variance
        σ² + σ² (1 - f) / (1 + f) = 2 σ² / (1 + f), of which that of the average is the part (1 - f) / 2.
        """
        known = np.isfinite(self.raw[name])
        differences = self.raw[name][known][1:] - self.smoothed[name][known][:-1]
        recent = differences[-max(3, round((1 + factor) / (1 - factor))) :]
        return float(np.std(recent) * np.sqrt((1 - factor) / 2)) if len(recent) > 2 else float("nan")


def read_runs(paths: list[str], factor: float) -> list[Run]:
    """Read metrics files whose names say what they are of.

    Parameters
    ----------
    paths : list of str
        Files ``workers-4-rate-0.001-seed-2.csv``, or without a rate where it is the best one.
    factor : float
        Weight of the past in the smoothed scores.

    Raises
    ------
    EvaluationError
        If a name does not say that, or a file is missing.
    """
    return [_read_run(Path(path), factor) for path in paths]


def _read_run(path: Path, factor: float) -> Run:
    parts = NAME.fullmatch(path.name)
    if parts is None:
        raise EvaluationError(f"{path}: the name says nothing, expected one like workers-4-rate-0.001-seed-2.csv")
    if not path.is_file():
        raise EvaluationError(f"{path}: no such file, expected what 'ffn study train' wrote")
    rows = read_metrics(path)
    missing = [name for name in ("step", "seconds", *SCORES) if rows and name not in rows[0]]
    if missing:
        raise EvaluationError(f"{path}: has no column {missing[0]}, expected what 'ffn study train' wrote")
    raw = {name: np.array([row[name] for row in rows], np.float64) for name in SCORES}
    return Run(
        int(parts["workers"]),
        None if parts["rate"] is None else float(parts["rate"]),
        int(parts["seed"]),
        np.array([int(row["step"]) for row in rows]),
        np.array([row["seconds"] for row in rows], np.float64),
        raw,
        {name: smoothed(values, factor) for name, values in raw.items()},
    )


def runs_at_best(runs: list[Run], best_rates: dict[int, float]) -> dict[int, list[Run]]:
    """Return the runs of each number of workers at its best learning rate, one for each seed.

    Parameters
    ----------
    runs : list of Run
        Of the grid and of further seeds.
    best_rates : dict of int to float
        By number of workers.

    Raises
    ------
    EvaluationError
        If there are fewer than two, which have no deviation.
    """
    found: dict[int, list[Run]] = {}
    for workers, rate in best_rates.items():
        seeds = {run.seed: run for run in runs if run.workers == workers and run.rate in (rate, None)}
        if len(seeds) < 2:
            raise EvaluationError(
                f"study: {len(seeds)} runs of {workers} workers at rate {rate:g}, expected two seeds or more"
            )
        found[workers] = [seeds[seed] for seed in sorted(seeds)]
    return found
