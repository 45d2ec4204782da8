"""The cost of reaching a score for each number of workers (Fig. 5 of Dong et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ffn.provenance import provenance
from ffn.studies.best import BestRuns, read_best_runs
from ffn.studies.config import EfficiencyConfig
from ffn.studies.optima import with_uncertainty
from ffn.studies.pages import COLOURS, new_figure, write_study
from ffn.studies.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"time": "relative time to reach F1", "fovs": "relative FOVs to reach F1"}


def study_efficiency(
    metrics: list[str], rates_path: str, scaling_path: str, out_path: str, config: EfficiencyConfig
) -> None:
    """Compare the time and the FOVs that different numbers of workers need to reach an F1 score.

    Parameters
    ----------
    metrics, rates_path, scaling_path, out_path : list of str, str, str, str
        As for `study_curves`.
    config : EfficiencyConfig
        Options of the studies.

    Raises
    ------
    EvaluationError
        As for `study_curves`.
    """
    best = read_best_runs(metrics, rates_path, scaling_path, config.smoothing)
    costs = {target: costs_to_reach(best, target) for target in config.f1_targets}
    content = {
        "provenance": provenance("study efficiency", config, rates=rates_path, scaling=scaling_path),
        "rates": best.rates,
        "targets": costs,
    }
    statements = [*(_statement(target, cost) for target, cost in costs.items()), best.time_statement]
    write_study(out_path, "Cost of reaching an F1", content, _figure(costs, list(best.runs)), statements)


def steps_to_reach(run: Run, target: float, last: int) -> float:
    """Return the step from which the smoothed F1 stays at or above `target` to the end.

    NaN if it ends below `target`, or before step `last` because the run diverged.
    """
    known = np.isfinite(run.smoothed["f1"])  # a row has no F1 if no walk has ended since the previous row
    below = np.flatnonzero(run.smoothed["f1"][known] < target)
    reached = int(below[-1]) + 1 if len(below) else 0
    return float(run.step[known][reached]) if last in run.step and reached < known.sum() else float("nan")


def costs_to_reach(best: BestRuns, target: float) -> dict[str, Any]:
    """Return the cost of reaching an F1, relative to the fewest workers that reach it.

    Parameters
    ----------
    best : BestRuns
        The runs.
    target : float
        Smoothed F1.

    Returns
    -------
    dict of str to list
        ``workers`` with which at least two seeds reach it; their ``steps``, ``relative_time`` and ``relative_fovs``,
        each the mean over these seeds, and its standard deviation as ``…_stddev``; ``failed``, the number of seeds that
        did not reach it, by number of workers.
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


def _statement(target: float, cost: dict[str, Any]) -> str:
    failed = ", ".join(f"{number} with {workers}" for workers, number in cost["failed"].items())
    missed = f" Runs that ended below it or diverged do not count: {failed} workers." if failed else ""
    if len(cost["workers"]) < 2:
        return f"F1 {target:g}: fewer than two numbers of workers reached it in at least two runs.{missed}"
    first, last = cost["workers"][0], cost["workers"][-1]
    time, fovs = (
        with_uncertainty(cost[f"relative_{kind}"][-1], cost[f"relative_{kind}_stddev"][-1]) for kind in LABELS
    )
    return (
        f"F1 {target:g}: {last} workers need {time} of the time of {first} (ideal: {first / last:.2g}), "
        f"and {fovs} times the FOVs.{missed}"
    )


def _figure(costs: dict[float, dict[str, Any]], workers: list[int]) -> Figure:
    """Draw time and FOVs over the number of workers."""
    figure, panels = new_figure(len(LABELS))
    references = sorted({cost["workers"][0] for cost in costs.values() if cost["workers"]}) or workers[:1]
    for panel, (kind, label) in zip(panels, LABELS.items(), strict=True):
        for i, (target, cost) in enumerate(costs.items()):
            y, spread = (np.array(cost[f"relative_{kind}{part}"]) for part in ("", "_stddev"))
            bars = y * spread / (y + spread), spread  # the lower end is y / (1 + spread / y): the same factor as above
            panel.errorbar(
                cost["workers"], y, bars, fmt="o-", capsize=3, color=COLOURS[i % len(COLOURS)], label=f"F1 {target:g}"
            )
        for first in references:  # each F1 is relative to the fewest workers that reach it
            more = np.array([n for n in workers if n >= first])
            ideal = first / more if kind == "time" else np.ones(len(more))
            panel.plot(more, ideal, "k:", label=f"ideal, from {first}")
        panel.set(xlabel="workers", ylabel=label)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log", base=2)
        panel.set_xticks(workers, [str(n) for n in workers])
        panel.yaxis.set_major_formatter(lambda value, position: f"{value:.3g}")
    panels[0].legend(fontsize=8)
    return figure
