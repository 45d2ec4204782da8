"""The runs at the best learning rate of each number of workers, and the time that their steps take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.studies.learning_rate import best_rates
from ffn.studies.runs import Run, read_runs, runs_at_best


class BestRuns(NamedTuple):
    """What figures 5 and 6 are drawn from.

    Parameters
    ----------
    runs : dict of int to list of Run
        At least two seeds, by number of workers.
    rates : dict of int to float
        Their learning rate.
    step_seconds : dict of int to float
        Modelled time of a step, s.
    network : str
        Of the scaling model.
    """

    runs: dict[int, list[Run]]
    rates: dict[int, float]
    step_seconds: dict[int, float]
    network: str

    @property
    def time_statement(self) -> str:
        """What the modelled time is."""
        return (
            "Time is modelled: the step of one worker as measured in these runs, times what the scaling model "
            f"(study_scaling, network '{self.network}') says a step takes longer on so many nodes."
        )


def read_best_runs(metrics: list[str], rates_path: str, scaling_path: str, smoothing: float) -> BestRuns:
    """Read training runs and keep those at the best rates.

    Parameters
    ----------
    metrics : list of str
        Files of all training runs, see `read_runs`.
    rates_path : str
        What the study of the learning rate wrote.
    scaling_path : str
        What the study of scaling wrote.
    smoothing : float
        Weight of the past in the smoothed scores.

    Raises
    ------
    EvaluationError
        If files are missing or not what they should be.
    """
    rates = best_rates(rates_path)
    runs = runs_at_best(read_runs(metrics, smoothing), rates)
    try:
        scaling = json.loads(Path(scaling_path).read_text())
        nodes, seconds = np.array(scaling["nodes"], float), np.array(scaling["here"]["step_seconds"], float)
        network, alone = str(scaling["network"]["name"]), float(scaling["fit"]["mean_seconds"])
    except (OSError, ValueError, KeyError, TypeError) as reason:
        raise EvaluationError(
            f"{scaling_path}: is no scaling study ({reason}), expected what 'ffn study scaling' wrote"
        ) from None
    fewest = min(runs)
    one = float(np.median([run.seconds[-1] / run.step[-1] / fewest for run in runs[fewest] if len(run.step)]))
    longer = {workers: float(np.interp(np.log(workers), np.log(nodes), seconds / alone)) for workers in runs}
    return BestRuns(runs, rates, {workers: one * factor for workers, factor in longer.items()}, network)
