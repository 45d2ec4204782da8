"""The runs at the best learning rate of each number of workers, and the time of their steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.studies.learning_rate import best_rates
from ffn.studies.runs import Run, read_runs, runs_at_best


class BestRuns(NamedTuple):
    """The data of figures 5 and 6.

    Parameters
    ----------
    runs : dict of int to list of Run
        At least two seeds, by number of workers.
    rates : dict of int to float
        Their learning rates.
    step_seconds : dict of int to float
        Modelled time of a step, s.
    network : str
        Name of the scaling model's network.
    """

    runs: dict[int, list[Run]]
    rates: dict[int, float]
    step_seconds: dict[int, float]
    network: str

    @property
    def time_statement(self) -> str:
        """How time is modelled, for the page."""
        return (
            "Time is modelled: the measured step of one worker in these runs, times the factor by which the slowest of "
            "that many nodes takes longer than one, plus the exchange of a gradient as large as that of the network in "
            f"section model (study_scaling, network '{self.network}')."
        )


def read_best_runs(metrics: list[str], rates_path: str, scaling_path: str, smoothing: float) -> BestRuns:
    """Read training runs and keep those at the best rates.

    Parameters
    ----------
    metrics : list of str
        Files of all training runs, see `read_runs`.
    rates_path : str
        Output of the study of the learning rate.
    scaling_path : str
        Output of the study of scaling.
    smoothing : float
        Weight of the past in the smoothed scores.

    Raises
    ------
    EvaluationError
        If files are missing or of another kind.
    """
    rates = best_rates(rates_path)
    runs = runs_at_best(read_runs(metrics, smoothing), rates)
    try:
        scaling = json.loads(Path(scaling_path).read_text())
        nodes, step, exchange = (
            np.array(values, float)
            for values in (scaling["nodes"], scaling["here"]["step_seconds"], scaling["exchange_seconds"])
        )
        network, alone = str(scaling["network"]["name"]), float(scaling["fit"]["mean_seconds"])
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise EvaluationError(
            f"{scaling_path}: is not a scaling study ({reason}), expected output of 'ffn study scaling'"
        ) from None
    one = float(np.median([run.worker_seconds for run in runs[min(runs)] if len(run.step)]))
    # the runs may be of a smaller network: the slowest node is slower by a factor, an exchange takes its time
    slower = {workers: _at(workers, nodes, (step - exchange) / alone) for workers in runs}
    seconds = {workers: one * slower[workers] + _at(workers, nodes, exchange) for workers in runs}
    return BestRuns(runs, rates, seconds, network)


def _at(workers: int, nodes: np.ndarray, values: np.ndarray) -> float:
    """Interpolate over the logarithm of the number of nodes."""
    return float(np.interp(np.log(workers), np.log(nodes), values))
