"""The output of a study: numbers as JSON, and a figure as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ffn.io import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")  # Okabe & Ito 2008
BLACK = 6
GREY = 7
DPI = 150


class Line(NamedTuple):
    """A line or markers; `bars` are lengths of error bars below and above, `band` the half width of a band."""

    x: Any
    y: Any
    label: str | None = None
    style: str = "-"
    colour: int = 0
    bars: Any = None
    band: np.ndarray | None = None


class Cells(NamedTuple):
    """Grey cells over logarithmic axes; NaN where there is none. `values` has a row for each y."""

    x: np.ndarray
    y: np.ndarray
    values: np.ndarray
    label: str


@dataclass(frozen=True)
class Panel:
    """A panel of a figure; `axes` are properties of matplotlib's axes, such as ``yscale``."""

    lines: list[Line]
    xlabel: str
    ylabel: str
    axes: dict[str, Any] = field(default_factory=dict)
    xticks: Sequence[float] = ()
    yticks: Sequence[float] = ()
    legend: str | None = None
    cells: Cells | None = None


def draw(panels: Sequence[Panel], num_rows: int = 1) -> Figure:
    """Draw panels row by row."""
    from matplotlib.figure import Figure

    num_columns = len(panels) // num_rows
    figure = Figure(figsize=(3.9 * num_columns, 3.3 * num_rows), layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(num_rows, num_columns, number)
        axes.spines[["top", "right"]].set_visible(False)
        if panel.cells:
            x, y, values, label = panel.cells
            figure.colorbar(axes.pcolormesh(_edges(x), _edges(y), values, cmap="Greys_r", vmax=1.0), label=label)
        for line in panel.lines:
            colour = COLOURS[line.colour % len(COLOURS)]
            axes.errorbar(line.x, line.y, line.bars, fmt=line.style, capsize=3, color=colour, label=line.label)
            if line.band is not None:
                axes.fill_between(line.x, line.y - line.band, line.y + line.band, color=colour, alpha=0.2, linewidth=0)
        axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel, **panel.axes)
        for set_ticks, ticks in ((axes.set_xticks, panel.xticks), (axes.set_yticks, panel.yticks)):
            if len(ticks):
                set_ticks(ticks, [f"{value:.3g}" for value in ticks])
                axes.minorticks_off()
        if panel.legend is not None:
            axes.legend(title=panel.legend, fontsize=7)
    return figure


def _edges(values: np.ndarray) -> np.ndarray:
    """Return the borders of cells around values on a logarithmic axis."""
    logs = np.log(values)
    steps = np.diff(logs) if len(logs) > 1 else np.array([0.7])
    upper = logs + np.append(steps, steps[-1])[-len(logs) :] / 2
    return np.exp([logs[0] - steps[0] / 2, *upper])


def write_study(
    out_path: str, provenance: dict[str, Any], content: dict[str, Any], panels: Sequence[Panel], num_rows: int = 1
) -> None:
    """Write numbers as JSON; the figure gets the same name with ``.png``."""
    path = Path(out_path)
    with atomic.atomic_path(path.with_suffix(".png")) as temporary:
        draw(panels, num_rows).savefig(temporary, dpi=DPI, metadata={"Software": None})
    atomic.write_json(path, {"provenance": provenance, **content})
