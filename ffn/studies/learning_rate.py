"""The best learning rate for each number of workers (Fig. 4 of Dong et al. 2019)."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.provenance import provenance
from ffn.studies.config import RatesConfig
from ffn.studies.pages import BLACK, Cells, Line, Panel, write_study
from ffn.studies.runs import Run, read_runs

NAMES = {"accuracy": "Accuracy", "f1": "F1"}
EXPONENTS = {"linear": 1.0, "square root": 0.5}
BEST_BY = "accuracy"  # decides which of the tried rates is best


def study_learning_rate(metrics: list[str], out_path: str, config: RatesConfig) -> None:
    """Compare training runs over a grid of numbers of workers and learning rates."""
    runs = read_runs(metrics)
    results = {name: _result(runs, name, config) for name in NAMES}
    best = dict(zip(config.workers, (o["best_tried"] for o in results[BEST_BY]["optima"]), strict=True))
    content = {
        "workers": config.workers,
        "learning_rates": config.learning_rates,
        "step": config.steps,
        "best_rates": {str(workers): rate for workers, rate in best.items()},
        **results,
    }
    panels = [_panel(NAMES[name], results[name], config) for name in NAMES]
    write_study(out_path, provenance("study learning-rate", config), content, panels)


def score_grid(runs: list[Run], name: str, config: RatesConfig) -> np.ndarray:
    """Return the score of every point of the grid: the smoothed one at the last step, NaN where the run diverged."""
    points = {(run.workers, run.rate): run.at(name, config.steps) for run in runs}
    grid = list(itertools.product(config.workers, config.learning_rates))
    for workers, rate in grid:
        if (workers, rate) not in points:
            raise EvaluationError(
                f"study: no run of {workers} workers at rate {rate:g}, expected one for every point of the grid"
            )
    return np.reshape([points[point] for point in grid], (len(config.workers), -1))


def _result(runs: list[Run], name: str, config: RatesConfig) -> dict[str, Any]:
    """Return scores, optima and power law for one kind of score, ready for JSON."""
    scores = score_grid(runs, name, config)
    optima: list[Optimum] = []
    for workers, row in zip(config.workers, scores, strict=True):
        if not np.isfinite(row).any():
            raise EvaluationError(
                f"study.learning_rates: training with {workers} workers diverged at all of {config.learning_rates}, "
                "expected one rate at which it does not. Add lower rates"
            )
        optima.append(find_optimum(np.array(config.learning_rates), row))
    law = fit_power_law(np.array(config.workers), optima)
    return {
        "scores": [[None if np.isnan(value) else float(value) for value in row] for row in scores],
        "optima": [optimum._asdict() for optimum in optima],
        "power_law": law and law._asdict(),
    }


def _panel(title: str, result: dict[str, Any], config: RatesConfig) -> Panel:
    """Draw normalised scores over workers and rates, with the optima and the scaling rules."""
    scores = np.array(result["scores"], np.float64)
    highest = np.nanmax(scores, axis=1, keepdims=True)
    shown = scores / np.where(highest > 0, highest, 1.0)
    workers, rates = np.array(config.workers), np.array(config.learning_rates)
    lines = []
    row, column = np.nonzero(np.isnan(shown))
    if len(row):
        lines.append(Line(workers[row], rates[column], "diverged", "x", BLACK))
    optimum = np.array([o["rate"] for o in result["optima"]])
    factor = np.exp([o["log_stddev"] for o in result["optima"]])
    bars = [optimum - optimum / factor, optimum * factor - optimum]
    lines.append(Line(workers, optimum, "optimum", "o", 1, bars))
    law = result["power_law"]
    start = optimum[0] if law is None else law["rate"] * workers[0] ** law["exponent"]
    for colour, style, (rule, exponent) in zip((4, 5), ("--", ":"), EXPONENTS.items(), strict=True):
        lines.append(Line(workers, start * (workers / workers[0]) ** exponent, rule, style, colour))
    title = f"{title}, step {config.steps}"
    if law is not None:
        lines.append(Line(workers, law["rate"] * workers ** law["exponent"], "fitted power"))
        title += f": workers^({law['exponent']:.2f} ± {law['stddev']:.2f})"
    cells = Cells(workers, rates, shown.T, "relative to best of column")
    axes = {"xscale": "log", "yscale": "log", "title": title, "ylim": (rates[0] / 1.4, rates[-1] * 1.4)}
    return Panel(lines, "workers", "learning rate", axes, config.workers, config.learning_rates, "", cells)


class Optimum(NamedTuple):
    """The learning rate at which the score of one number of workers is highest, interpolated between the tried ones.

    At an edge, the best tried rate is the lowest or highest, so the optimum may lie outside.
    """

    rate: float
    log_stddev: float
    best_tried: float
    at_edge: bool


class PowerLaw(NamedTuple):
    """The optimum as ``rate · workers ^ exponent``."""

    exponent: float
    stddev: float
    rate: float
    num_optima: int


def find_optimum(rates: np.ndarray, scores: np.ndarray) -> Optimum:
    """Find the highest score by a parabola through the best tried rate and its neighbours.

    Where training diverged, the lowest score of the other rates counts. The uncertainty is the deviation of a uniform
    distribution over one step of the grid, because within a step the parabola is a guess.
    """
    logs = np.log(rates)
    lowest = np.nextafter(np.nanmin(scores), -np.inf)  # below all that did not diverge, even if those are equal
    scores = np.where(np.isfinite(scores), scores, lowest)
    best = int(np.argmax(scores))
    peak, at_edge = logs[best], best in (0, len(rates) - 1)
    if not at_edge:
        near = slice(best - 1, best + 2)
        square, linear, _ = np.polyfit(logs[near] - peak, scores[near] - scores[best], 2)
        peak -= linear / square / 2 if square < 0 else 0.0  # all three may be equal
    stddev = float(np.mean(np.diff(logs))) / math.sqrt(12)
    return Optimum(math.exp(peak), stddev, float(rates[best]), at_edge)


def fit_power_law(workers: np.ndarray, optima: list[Optimum]) -> PowerLaw | None:
    """Fit a power law to the optima inside the tried rates, by least squares on logarithms.

    If the optima scatter around the line more than their own uncertainties explain, as they do with noisy scores, the
    uncertainty grows by the root of the reduced chi²; it never shrinks.
    """
    usable = [(n, optimum) for n, optimum in zip(workers, optima, strict=True) if not optimum.at_edge]
    if len(usable) < 3:
        return None
    x, y = np.log([(n, optimum.rate) for n, optimum in usable]).T
    weight = np.array([1 / optimum.log_stddev for _, optimum in usable])
    (slope, start), covariance = np.polyfit(x, y, 1, w=weight, cov="unscaled")
    reduced = np.sum((weight * (y - start - slope * x)) ** 2) / (len(usable) - 2)
    stddev = math.sqrt(max(1.0, reduced) * covariance[0, 0])
    return PowerLaw(float(slope), stddev, math.exp(start), len(usable))
