"""Cost and curves of the runs at the best learning rate of each number of workers (Fig. 5, 6 of Dong et al. 2019)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.io.faults import unreadable
from ffn.provenance import provenance
from ffn.studies.config import CurvesConfig, EfficiencyConfig
from ffn.studies.pages import BLACK, Line, Panel, draw, write_study
from ffn.studies.runs import SCORES, Run, best_rates, read_runs, runs_at_best

LABELS = {"time": "relative time to reach F1", "fovs": "relative FOVs to reach F1"}

Curves = dict[str, np.ndarray]


class BestRuns(NamedTuple):
    """At least two seeds at the best rate of each number of workers, and the modelled seconds of their steps."""

    runs: dict[int, list[Run]]
    rates: dict[int, float]
    step_seconds: dict[int, float]


def study_efficiency(metrics: list[str], out_path: str, config: EfficiencyConfig, rates: str, scaling: str) -> None:
    """Compare the time and the FOVs that different numbers of workers need to reach an F1 score.

    `metrics` are those of all runs; `rates` and `scaling` are outputs of these studies.
    """
    best = read_best_runs(metrics, rates, scaling)
    costs = {target: costs_to_reach(best, target) for target in config.f1_targets}
    provided = provenance("study efficiency", config, rates=rates, scaling=scaling)
    content = {"provenance": provided, "rates": best.rates, "targets": costs}
    write_study(out_path, content, draw([_cost_panel(kind, costs, list(best.runs)) for kind in LABELS]))


def study_curves(metrics: list[str], out_path: str, config: CurvesConfig, rates: str, scaling: str) -> None:
    """Draw scores over steps and time; see `study_efficiency` for the parameters."""
    best = read_best_runs(metrics, rates, scaling)
    curves = {workers: mean_curves(runs, best.step_seconds[workers]) for workers, runs in best.runs.items()}
    content = {
        "provenance": provenance("study curves", config, rates=rates, scaling=scaling),
        "rates": best.rates,
        "curves": {w: {name: values.tolist() for name, values in curve.items()} for w, curve in curves.items()},
    }
    write_study(out_path, content, draw(_curve_panels(curves), num_rows=2))


def read_best_runs(metrics: list[str], rates_path: str, scaling_path: str) -> BestRuns:
    """Read training runs, keep those at the best rates, and take the time of their steps from the study of scaling."""
    rates = best_rates(rates_path)
    runs = runs_at_best(read_runs(metrics), rates)
    with unreadable(scaling_path, "output of 'ffn study scaling'", EvaluationError):
        scaling = json.loads(Path(scaling_path).read_text())
        exchange = np.array(scaling["exchange_seconds"])
        compute = np.array(scaling["here"]["step_seconds"]) - exchange
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
    return Panel(lines, "workers", LABELS[kind], {"xscale": "log", "yscale": "log"}, workers, legend="")


def mean_curves(runs: list[Run], step_seconds: float) -> Curves:
    """Return mean and standard deviation (``…_stddev``) of every smoothed score at the steps that all runs have."""
    steps = np.array(sorted(set.intersection(*(set(run.step.tolist()) for run in runs))), np.int64)
    curves: Curves = {"step": steps, "seconds": steps * step_seconds}
    for name in SCORES:
        values = np.array([run.smoothed[name][np.isin(run.step, steps)] for run in runs])
        curves |= {name: values.mean(axis=0), f"{name}_stddev": values.std(axis=0, ddof=1)}
    return curves


def _curve_panels(curves: dict[int, Curves]) -> list[Panel]:
    """Draw a column for each score, over steps in the first row and over time in the second."""
    panels: list[Panel] = []
    for over, label in (("step", "step"), ("seconds", "modelled time, s")):
        for name in SCORES:
            lines = [
                Line(curve[over], curve[name], f"{workers}", colour=i, band=curve[f"{name}_stddev"])
                for i, (workers, curve) in enumerate(curves.items())
            ]
            panels.append(Panel(lines, label, name, {"ylim": (0, 1)}, legend=None if panels else "workers"))
    return panels
