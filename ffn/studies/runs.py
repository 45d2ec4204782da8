"""The training runs of a study: their scores by workers, learning rate and seed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.training.metrics import read_metrics, smoothed

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
        """Return a smoothed score at a step; NaN if training diverged before."""
        found = np.flatnonzero(self.step == step)
        return float(self.smoothed[name][found[0]]) if len(found) else float("nan")

    def noise(self, name: str, factor: float) -> float:
        """Return how uncertain the last smoothed score is, from the scatter of the rows that it averages.

        Notes
        -----
        A moving average with this factor is worth ``(1 + factor) / (1 - factor)`` independent rows.
        """
        worth = (1 + factor) / (1 - factor)
        rows = max(3, round(worth))
        scatter = (self.raw[name] - self.smoothed[name])[-rows:]
        scatter = scatter[np.isfinite(scatter)]
        return float(np.std(scatter) / np.sqrt(worth)) if len(scatter) > 2 else float("nan")


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
