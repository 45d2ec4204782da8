"""Training curves, drawn from ``metrics.csv`` and ``validation.csv``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ffn.report.charts import Chart, Line, chart, stacked
from ffn.training.monitoring.metrics import MOVE_SCORES, SCORES, MetricsRow, smoothed

SCORE_NAMES = {name: "F1" if name == "f1" else name for name in SCORES}
REACHES = dict(zip(MOVE_SCORES[:3], ("1 delta", "2 deltas", "3 deltas"), strict=True))
SHARES = {"Accuracy, precision, recall, F1": SCORE_NAMES, "Share of the moves made, by distance": REACHES}
STEP_PARTS = {"input_ms": "input", "compute_ms": "compute", "allreduce_ms": "allreduce", "rest_ms": "rest"}

Columns = dict[str, np.ndarray]


def training_charts(metrics: Sequence[MetricsRow], validation: Sequence[MetricsRow] = ()) -> list[Chart]:
    """Draw a chart for each set of columns that the files have. Files of earlier versions have fewer.

    Parameters
    ----------
    metrics, validation : sequence of dict of str to float
        Rows of ``metrics.csv`` and ``validation.csv``, see `ffn.training.monitoring.metrics.read_metrics`.

    Returns
    -------
    list of Chart
        Loss; accuracy, precision, recall and F1, smoothed with factor 0.9 as in the paper; share of the moves made,
        by their distance, smoothed; learning rate; FOVs/s; breakdown of the time of a step.
    """
    if not metrics:
        return []
    rows, validated = _finite_columns(metrics), _finite_columns(validation)
    charts = [_loss_chart(rows, validated)]
    charts += [_shares_chart(title, names, rows, validated) for title, names in SHARES.items()]
    charts += [_curve_chart(rows, "learning_rate", "Learning rate"), _curve_chart(rows, "fovs_per_second", "FOVs/s")]
    return [one for one in [*charts, _time_chart(rows)] if one is not None]


def _finite_columns(rows: Sequence[MetricsRow]) -> Columns:
    """Columns with at least one finite value."""
    columns = {name: np.array([row[name] for row in rows], np.float64) for name in (rows[0] if rows else ())}
    return {name: values for name, values in columns.items() if np.isfinite(values).any()}


def _loss_chart(rows: Columns, validated: Columns) -> Chart | None:
    if "loss" not in rows:
        return None
    step, loss = rows["step"], rows["loss"]
    lines = [Line("as logged", step, loss, "faint s0"), Line("smoothed", step, smoothed(loss), "s0")]
    if "loss" in validated:
        lines.append(Line("validation", validated["step"], validated["loss"], "s1", "dots"))
    return chart("Loss", lines, (0.0, None))


def _shares_chart(title: str, names: dict[str, str], rows: Columns, validated: Columns) -> Chart | None:
    """Draw columns from 0 to 1, smoothed; accuracy also as logged, as in the paper."""
    shown = [(f"s{i}", name) for i, name in enumerate(names) if name in rows]
    if not shown:
        return None
    lines = [Line("", rows["step"], rows[name], f"faint {style}") for style, name in shown if name == "accuracy"]
    lines += [Line(names[name], rows["step"], smoothed(rows[name]), style) for style, name in shown]
    dotted = [(style, name) for style, name in shown if name in validated]
    lines += [Line("", validated["step"], validated[name], style, "dots") for style, name in dotted]
    return chart(title + (" (dots: validation)" if dotted else ""), lines, (0.0, 1.0))


def _curve_chart(rows: Columns, name: str, title: str) -> Chart | None:
    if name not in rows or len(rows["step"]) < 2:
        return None
    return chart(title, [Line("", rows["step"], rows[name], "s0")], (0.0, None))


def _time_chart(rows: Columns) -> Chart | None:
    """Draw the breakdown of a step's time, without the first row, which includes compilation."""
    if not rows.keys() >= STEP_PARTS.keys() or len(rows["step"]) < 3:
        return None
    parts = {text: rows[name][1:] for name, text in STEP_PARTS.items()}
    return chart("Time of a step, ms", stacked(rows["step"][1:], parts), (0.0, None))
