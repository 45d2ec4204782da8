"""Line charts as inline SVG; colours come from the page, so that they follow its light or dark mode."""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 10, 40
MAX_POINTS = 600


class Line(NamedTuple):
    """One curve.

    Parameters
    ----------
    name : str
        For the legend; empty keeps it out of there.
    x, y : ndarray of shape (N,)
        Points in the order of x; points that are not finite are left out.
    style : str
        CSS class, which gives colour and width.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    style: str


def line_chart(
    lines: list[Line], title: str, x_label: str, y_range: tuple[float | None, float | None] = (None, None)
) -> str:
    """Draw curves in one frame.

    Parameters
    ----------
    lines : list of Line
        At least one finite point in all.
    title : str
        Read out instead of the picture.
    x_label : str
        Under the horizontal axis.
    y_range : tuple of float or None
        Ends of the vertical axis; None takes the data's.

    Returns
    -------
    str
        An ``<svg>`` element; the legend is left to the page.
    """
    finite = [_thinned(line) for line in lines]
    x_ticks = ticks(*_extent([line.x for line in finite]))
    low, high = _extent([line.y for line in finite])
    y_ticks = ticks(low if y_range[0] is None else y_range[0], high if y_range[1] is None else y_range[1])
    frame = _Frame((x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]))
    body = [*_grid(frame, x_ticks, y_ticks), *(_path(frame, line) for line in finite if len(line.x))]
    body.append(f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round values that enclose ``[low, high]``.

    Examples
    --------
    >>> ticks(0, 930)
    [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]
    """
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def smoothed(values: np.ndarray, factor: float = 0.9) -> np.ndarray:
    """Exponential moving average as TensorBoard draws it: unbiased from the first value on, NaN stays NaN.

    Parameters
    ----------
    values : float ndarray of shape (N,)
        One curve.
    factor : float
        Weight of the past; the paper uses 0.9.
    """
    result = np.full(len(values), np.nan)
    mean, weight = 0.0, 0.0
    for i, value in enumerate(values):
        if np.isfinite(value):
            mean = factor * mean + (1 - factor) * value
            weight = factor * weight + (1 - factor)
            result[i] = mean / weight
    return result


class _Frame(NamedTuple):
    """Maps data to the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: np.ndarray | float) -> np.ndarray | float:
        """Horizontal place."""
        a, b = self.x_range
        return LEFT + (value - a) / (b - a) * (WIDTH - LEFT - RIGHT)

    def y(self, value: np.ndarray | float) -> np.ndarray | float:
        """Vertical place."""
        a, b = self.y_range
        return HEIGHT - BOTTOM - (value - a) / (b - a) * (HEIGHT - TOP - BOTTOM)


def _thinned(line: Line) -> Line:
    """Keep finite points, and no more than can be seen."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    chosen = finite[:: max(1, math.ceil(len(finite) / MAX_POINTS))]
    return line._replace(x=x[chosen], y=y[chosen])


def _extent(values: list[np.ndarray]) -> tuple[float, float]:
    everything = np.concatenate(values)
    return float(everything.min()), float(everything.max())


def _grid(frame: _Frame, x_ticks: list[float], y_ticks: list[float]) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = []
    for tick in y_ticks:
        y = frame.y(tick)
        lines.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x = frame.x(tick)
        lines.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>')
    return lines


def _path(frame: _Frame, line: Line) -> str:
    points = zip(np.atleast_1d(frame.x(line.x)), np.atleast_1d(frame.y(line.y)), strict=True)
    return f'<polyline class="{line.style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
