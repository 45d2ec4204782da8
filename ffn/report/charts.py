"""Curves of a training and of a sweep as inline SVG."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ffn.report.verdict import SHOWN_CONVENTIONS
from ffn.training.metrics import SCORES, MetricsRow, smoothed

STYLE: Any = {
    "svg.hashsalt": "report",  # so that reruns give the same bytes
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    "legend.fontsize": "small",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
SCORE_NAMES = {name: "F1" if name == "f1" else name for name in SCORES}
STEP_PARTS = {"input_ms": "input", "compute_ms": "compute", "allreduce_ms": "allreduce", "rest_ms": "rest"}
TRAINING: dict[str, dict[str, str]] = {  # labels of the columns in each chart
    "Loss": {"loss": "loss"},
    "Accuracy, precision, recall, F1": SCORE_NAMES,
    "Learning rate": {"learning_rate": ""},
    "FOVs/s": {"fovs_per_second": ""},
    "Time of a step, ms": STEP_PARTS,
}
SMOOTHED = {"loss", *SCORE_NAMES}
AS_MEASURED = {"loss", "accuracy"}  # too, as in the paper
SWEPT = {"voi": "sum", "voi_split": "split", "voi_merge": "merge"}
SWEEP_AXIS = "merge threshold; at 1 nothing is merged"

Columns = dict[str, np.ndarray]


class Chart(NamedTuple):
    """A title, and an ``<svg>`` element that uses no other file."""

    title: str
    svg: str


def chart(title: str, draw: Callable[[Axes], object], x_label: str = "step", top: float | None = None) -> Chart:
    """Draw curves by `draw`, with a legend of those that have a label. The vertical axis begins at 0."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.8, 2.7), layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.set_xlabel(x_label)
        axes.set_ylim(0, top)
        if axes.get_legend_handles_labels()[1]:
            axes.legend()
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    svg = file.getvalue()
    return Chart(title, svg[svg.index("<svg") :])


def training_charts(metrics: Sequence[MetricsRow], validation: Sequence[MetricsRow] = ()) -> list[Chart]:
    """Draw the columns of ``metrics.csv`` and ``validation.csv``. Files of earlier versions have fewer."""
    rows, validated = _finite_columns(metrics), _finite_columns(validation)
    charts = []
    for title, labels in TRAINING.items():
        shown = {name: label for name, label in labels.items() if name in rows}
        if shown:
            draw = functools.partial(_draw_training, rows=rows, validated=validated, labels=shown)
            charts.append(chart(title, draw, top=1 if labels is SCORE_NAMES else None))
    return charts


def _draw_training(axes: Axes, rows: Columns, validated: Columns, labels: dict[str, str]) -> None:
    """Draw smoothed curves, and dots of the validation; times without the first row, which includes compilation."""
    for number, (name, label) in enumerate(labels.items()):
        color, first = f"C{number}", int(name in STEP_PARTS)
        steps, values = rows["step"][first:], rows[name][first:]
        if name in AS_MEASURED:
            axes.plot(steps, values, color=color, alpha=0.35, linewidth=1)
        axes.plot(steps, smoothed(values) if name in SMOOTHED else values, color=color, label=label)
        if name in validated:
            axes.plot(validated["step"], validated[name], "o", color=color, markersize=3)


def sweep_charts(sweep: dict[str, list[dict[str, Any]]]) -> list[Chart]:
    """Draw variation of information and adapted Rand error as functions of the merge threshold, by convention.

    The row without merges, whose threshold no score reaches, is drawn at 1.
    """
    charts = []
    for convention in SHOWN_CONVENTIONS:
        rows = [row for row in sweep.get(convention, []) if row["voi"] is not None and row["are"] is not None]
        for title, names in (("Variation of information, bits", SWEPT), ("Adapted Rand error", {"are": ""})):
            if rows:
                draw = functools.partial(_draw_sweep, rows=rows, names=names)
                charts.append(chart(f"{title}: agglomerated, {convention}", draw, SWEEP_AXIS))
    return charts


def _draw_sweep(axes: Axes, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    thresholds = np.minimum([row["threshold"] for row in rows], 1.0)
    for name, label in names.items():
        axes.plot(thresholds, [row[name] for row in rows], label=label)


def _finite_columns(rows: Sequence[MetricsRow]) -> Columns:
    """Columns with at least one finite value."""
    columns = {name: np.array([row[name] for row in rows], np.float64) for name in (rows[0] if rows else ())}
    return {name: values for name, values in columns.items() if np.isfinite(values).any()}
