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

from ffn.report.score_table import SHOWN_CONVENTIONS
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
FAINT: dict[str, Any] = {"alpha": 0.35, "linewidth": 1}
SCORE_NAMES = {name: "F1" if name == "f1" else name for name in SCORES}
STEP_PARTS = {"input_ms": "input", "compute_ms": "compute", "allreduce_ms": "allreduce", "rest_ms": "rest"}
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
    if not metrics:
        return []
    rows, validated = _finite_columns(metrics), _finite_columns(validation)
    charts = [_loss_chart(rows, validated), _scores_chart(rows, validated)]
    charts += [_curve_chart(rows, "learning_rate", "Learning rate"), _curve_chart(rows, "fovs_per_second", "FOVs/s")]
    return [one for one in [*charts, _time_chart(rows)] if one is not None]


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


def _loss_chart(rows: Columns, validated: Columns) -> Chart | None:
    if "loss" not in rows:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(rows["step"], rows["loss"], color="C0", label="as logged", **FAINT)
        axes.plot(rows["step"], smoothed(rows["loss"]), color="C0", label="smoothed")
        if "loss" in validated:
            axes.plot(validated["step"], validated["loss"], "o", color="C1", markersize=3, label="validation")

    return chart("Loss", draw)


def _scores_chart(rows: Columns, validated: Columns) -> Chart | None:
    """Draw the scores, smoothed; accuracy also as logged, as in the paper."""
    title, shown = "Accuracy, precision, recall, F1", [name for name in SCORES if name in rows]
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        for i, name in enumerate(shown):
            if name == "accuracy":
                axes.plot(rows["step"], rows[name], color=f"C{i}", **FAINT)
            axes.plot(rows["step"], smoothed(rows[name]), color=f"C{i}", label=SCORE_NAMES[name])
            if name in validated:
                axes.plot(validated["step"], validated[name], "o", color=f"C{i}", markersize=3)

    is_validated = any(name in validated for name in shown)
    return chart(f"{title} (dots: validation)" if is_validated else title, draw, top=1)


def _curve_chart(rows: Columns, name: str, title: str) -> Chart | None:
    if name not in rows or len(rows["step"]) < 2:
        return None
    return chart(title, lambda axes: axes.plot(rows["step"], rows[name]))


def _time_chart(rows: Columns) -> Chart | None:
    """Draw the parts of a step's time, without the first row, which includes compilation."""
    if not rows.keys() >= STEP_PARTS.keys() or len(rows["step"]) < 3:
        return None
    parts = [rows[name][1:] for name in STEP_PARTS]
    return chart(
        "Time of a step, ms", lambda axes: axes.stackplot(rows["step"][1:], parts, labels=list(STEP_PARTS.values()))
    )
