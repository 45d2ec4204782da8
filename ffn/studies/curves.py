"""Training curves for each number of workers, mean and deviation over seeds (Fig. 6 of Dong et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ffn.provenance import provenance
from ffn.studies.best import read_best_runs
from ffn.studies.config import CurvesConfig
from ffn.studies.pages import COLOURS, new_figure, write_study
from ffn.studies.runs import SCORES, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {"accuracy": "Accuracy", "f1": "F1", "precision": "Precision", "recall": "Recall"}
UNITS = {"h": 3600.0, "min": 60.0, "s": 1.0}

Curves = dict[str, np.ndarray]


def study_curves(metrics: list[str], rates_path: str, scaling_path: str, out_path: str, config: CurvesConfig) -> None:
    """Draw scores over steps and time, at the best learning rate of each number of workers.

    Parameters
    ----------
    metrics, rates_path, scaling_path : list of str, str, str
        Files, see `read_best_runs`.
    out_path : str
        JSON file; a PNG and an HTML file get the same name.
    config : CurvesConfig
        Options of the studies.

    Raises
    ------
    EvaluationError
        If files are missing or of another kind.
    """
    best = read_best_runs(metrics, rates_path, scaling_path, config.smoothing)
    curves = {workers: mean_curves(runs, best.step_seconds[workers]) for workers, runs in best.runs.items()}
    content = {
        "provenance": provenance("study curves", config, rates=rates_path, scaling=scaling_path),
        "rates": best.rates,
        "curves": {w: {name: values.tolist() for name, values in curve.items()} for w, curve in curves.items()},
    }
    ends = [f"{c['f1'][-1]:.2f} ± {c['f1_stddev'][-1]:.2f} with {w}" for w, c in curves.items() if len(c["f1"])]
    short = [str(w) for w, c in curves.items() if config.steps not in c["step"]]
    statements = [
        f"Mean and one standard deviation over {config.seeds} seeds at the best learning rate of each number of "
        f"workers, smoothed with factor {config.smoothing:g}. F1 at the end: {', '.join(ends)} workers."
        + (f" With {', '.join(short)} a run diverged, and the curve ends there." if short else ""),
        best.time_statement,
    ]
    write_study(out_path, "Training curves", content, _figure(curves), statements)


def mean_curves(runs: list[Run], step_seconds: float) -> Curves:
    """Return mean and standard deviation of every smoothed score at the steps that all runs have.

    Parameters
    ----------
    runs : list of Run
        At least two.
    step_seconds : float
        Time of a step, s.

    Returns
    -------
    dict of str to ndarray
        ``step``, ``seconds``, each of `SCORES`, and its standard deviation between runs as ``…_stddev``.
    """
    steps = np.array(sorted(set.intersection(*(set(run.step.tolist()) for run in runs))), np.int64)
    curves: Curves = {"step": steps, "seconds": steps * step_seconds}
    for name in SCORES:
        values = np.array([run.smoothed[name][np.isin(run.step, steps)] for run in runs])
        curves |= {name: values.mean(axis=0), f"{name}_stddev": values.std(axis=0, ddof=1)}
    return curves


def _figure(curves: dict[int, Curves]) -> Figure:
    """Draw a column for each score, over steps in the first row and over time in the second."""
    figure, panels = new_figure(len(SCORES), num_rows=2)
    longest = max(float(curve["seconds"].max(initial=0.0)) for curve in curves.values())
    unit = next((unit for unit, length in UNITS.items() if longest >= 2 * length), "s")
    axes = {"step": ("step", 1.0), "seconds": (f"modelled time, {unit}", UNITS[unit])}
    places = [(name, over) for over in axes for name in SCORES]
    for panel, (name, over) in zip(panels, places, strict=True):
        for i, (workers, curve) in enumerate(curves.items()):
            x, colour = curve[over] / axes[over][1], COLOURS[i % len(COLOURS)]
            mean, deviation = curve[name], curve[f"{name}_stddev"]
            panel.plot(x, mean, color=colour, label=f"{workers}")
            panel.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
        panel.set(xlabel=axes[over][0], ylabel=TITLES[name], ylim=(0, 1))
    panels[0].legend(title="workers", fontsize=8)
    return figure
