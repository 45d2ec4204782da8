"""The training runs of the studies: best rates, and cost and curves at these (Fig. 4 to 6 of Dong et al. 2019)."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import DivergenceError, EvaluationError
from ffn.io.atomic import unreadable, write_text
from ffn.model.choice import FOLDER
from ffn.provenance import provenance
from ffn.studies.config import CurvesConfig, RatesConfig
from ffn.studies.pages import BLACK, Cells, Line, Panel, write_study
from ffn.training.metrics import SMOOTHING, read_metrics, smoothed
from ffn.training.plan import Training
from ffn.training.train import train

COLUMNS = {"step": "step", "seconds": "modelled time, s"}  # what scores are drawn over
COSTS = {"fovs": "relative FOVs to reach F1", "time": "relative time to reach F1"}
SCORES = ("accuracy", "f1", "precision", "recall")
NAME = re.compile(r"workers-(?P<workers>\d+)(-rate-(?P<rate>[0-9.e+-]+))?-seed-(?P<seed>\d+)\.csv")
NAMES = {"accuracy": "Accuracy", "f1": "F1"}
EXPONENTS = {"linear": 1.0, "square root": 0.5}
BEST_BY = "accuracy"  # decides which of the tried rates is best

Curves = dict[str, np.ndarray]

log = logging.getLogger(__name__)


def train_point(training: Training, runs_folder: str, out_path: str, rates_path: str | None = None) -> None:
    """Train, or resume training, and write the metrics; a run that diverges ends early, which is also a result.

    `training` is that of one process, whose virtual workers are the workers. The model folder in `runs_folder` is named
    after workers, rate and seed. With the output of the study of the learning rate, its best rate replaces that of
    `training`.
    """
    config = training.config
    workers = config.total_workers
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
    write_text(out_path, (folder / "metrics.csv").read_text())


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
            found = f"study.learning_rates: training with {workers} workers diverged at all of {config.learning_rates}"
            raise EvaluationError(f"{found}, expected one rate at which it does not. Add lower rates")
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


class BestRuns(NamedTuple):
    """At least two seeds at the best rate of each number of workers, and the modelled seconds of their steps."""

    runs: dict[int, list[Run]]
    rates: dict[int, float]
    step_seconds: dict[int, float]


def study_curves(metrics: list[str], out_path: str, config: CurvesConfig, rates: str, scaling: str) -> None:
    """Draw scores over steps and time, and compare what different numbers of workers need to reach an F1 score.

    `metrics` are those of all runs; `rates` and `scaling` are outputs of these studies.
    """
    best = read_best_runs(metrics, rates, scaling)
    curves = {workers: mean_curves(runs, best.step_seconds[workers]) for workers, runs in best.runs.items()}
    costs = {target: costs_to_reach(best, target) for target in config.f1_targets}
    content = {
        "rates": best.rates,
        "curves": {w: {name: values.tolist() for name, values in curve.items()} for w, curve in curves.items()},
        "targets": costs,
    }
    panels = []
    for over, cost in zip(COLUMNS, COSTS, strict=True):
        panels += [*_curve_panels(curves, over), _cost_panel(cost, costs, list(best.runs))]
    panels[0] = replace(panels[0], legend="workers")
    write_study(out_path, provenance("study curves", config, rates=rates, scaling=scaling), content, panels, num_rows=2)


def read_best_runs(metrics: list[str], rates_path: str, scaling_path: str) -> BestRuns:
    """Read training runs, keep those at the best rates, and take the time of their steps from the study of scaling."""
    rates = best_rates(rates_path)
    runs = runs_at_best(read_runs(metrics), rates)
    with unreadable(scaling_path, "output of 'ffn study scaling'", EvaluationError):
        scaling = json.loads(Path(scaling_path).read_text())
        exchange = np.array(scaling["exchange_seconds"])
        compute = np.array(scaling["step_seconds"]) - exchange
        steps = compute / scaling["fovs_per_step"] + exchange  # here, a worker has one FOV in a step
        seconds = np.interp(np.log(list(runs)), np.log(scaling["nodes"]), steps)
    return BestRuns(runs, rates, dict(zip(runs, seconds.tolist(), strict=True)))


def steps_to_reach(run: Run, target: float, last: int) -> float:
    """Return the step from which the smoothed F1 stays at or above `target` to the end.

    NaN if it ends below `target`, or before step `last` because the run diverged.
    """
    known = np.isfinite(run.smoothed["f1"])  # a row has no F1 if no walk has ended since the previous row
    below = np.flatnonzero(run.smoothed["f1"][known] < target)
    reached = int(below[-1]) + 1 if len(below) else 0
    return float(run.step[known][reached]) if last in run.step and reached < known.sum() else float("nan")


def costs_to_reach(best: BestRuns, target: float) -> dict[str, Any]:
    """Return the cost of reaching a smoothed F1, relative to the fewest workers with which two seeds reach it.

    Each cost is the mean over the seeds that reach it, with its standard deviation as ``…_stddev``; ``failed`` is the
    number of the others, by number of workers.
    """
    last = max(int(run.step.max(initial=0)) for runs in best.runs.values() for run in runs)
    reached = {w: np.array([steps_to_reach(run, target, last) for run in runs]) for w, runs in best.runs.items()}
    failed = {w: number for w, steps in reached.items() if (number := int(np.isnan(steps).sum()))}
    reached = {w: steps[np.isfinite(steps)] for w, steps in reached.items() if np.isfinite(steps).sum() >= 2}
    workers = np.array(list(reached), np.int64)
    steps = np.array([reached[w].mean() for w in reached])
    deviation = np.array([reached[w].std(ddof=1) for w in reached])
    result: dict[str, Any] = {"workers": workers.tolist(), "steps": steps.tolist(), "steps_stddev": deviation.tolist()}
    result["failed"] = failed
    for kind, cost in (("time", np.array([best.step_seconds[w] for w in reached])), ("fovs", workers)):
        relative = steps * cost / (steps[:1] * cost[:1])
        own, reference = deviation / steps, deviation[:1] / steps[:1]
        spread = relative * np.where(workers == workers[:1], 0.0, np.hypot(own, reference))
        result |= {f"relative_{kind}": relative.tolist(), f"relative_{kind}_stddev": spread.tolist()}
    return result


def _cost_panel(kind: str, costs: dict[float, dict[str, Any]], workers: list[int]) -> Panel:
    """Draw time or FOVs over the number of workers."""
    lines = []
    for i, (target, cost) in enumerate(costs.items()):
        y, spread = (np.array(cost[f"relative_{kind}{part}"]) for part in ("", "_stddev"))
        bars = y * spread / (y + spread), spread  # the lower end is y / (1 + spread / y): the same factor as above
        lines.append(Line(cost["workers"], y, f"F1 {target:g}", "o-", i, bars))
    for first in sorted({cost["workers"][0] for cost in costs.values() if cost["workers"]}) or workers[:1]:
        more = np.array([n for n in workers if n >= first])  # each F1 is relative to the fewest that reach it
        ideal = first / more if kind == "time" else np.ones(len(more))
        lines.append(Line(more, ideal, f"ideal, from {first}", ":", BLACK))
    return Panel(lines, "workers", COSTS[kind], {"xscale": "log", "yscale": "log"}, workers, legend="")


def mean_curves(runs: list[Run], step_seconds: float) -> Curves:
    """Return mean and standard deviation (``…_stddev``) of every smoothed score at the steps that all runs have."""
    steps = np.array(sorted(set.intersection(*(set(run.step.tolist()) for run in runs))), np.int64)
    curves: Curves = {"step": steps, "seconds": steps * step_seconds}
    for name in SCORES:
        values = np.array([run.smoothed[name][np.isin(run.step, steps)] for run in runs])
        curves |= {name: values.mean(axis=0), f"{name}_stddev": values.std(axis=0, ddof=1)}
    return curves


def _curve_panels(curves: dict[int, Curves], over: str) -> list[Panel]:
    """Draw each score over steps or time."""
    panels = []
    for name in SCORES:
        lines = [
            Line(curve[over], curve[name], f"{workers}", colour=i, band=curve[f"{name}_stddev"])
            for i, (workers, curve) in enumerate(curves.items())
        ]
        panels.append(Panel(lines, COLUMNS[over], name, {"ylim": (0, 1)}))
    return panels
