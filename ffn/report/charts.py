"""Line charts as inline SVG. Colours come from the page's CSS, so they follow its light or dark mode."""

from __future__ import annotations

import math
from html import escape
from typing import Literal, NamedTuple

import numpy as np

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 10, 40
MAX_POINTS = 600


class Line(NamedTuple):
    """One curve.

    Parameters
    ----------
    name : str
        Text in the legend; a curve with an empty name has no entry.
    x, y : ndarray of shape (N,)
        Points in the order of x. Points that are not finite are left out.
    style : str
        CSS class that sets colour and width.
    shape : {'line', 'dots', 'area'}
        A line through the points, the points alone, or the area between the line and `base`.
    base : ndarray of shape (N,), optional
        Lower edge of an area, default 0.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    style: str
    shape: Literal["line", "dots", "area"] = "line"
    base: np.ndarray | None = None


class Chart(NamedTuple):
    """A chart and its legend, whose entries are CSS class, name and shape."""

    title: str
    svg: str
    legend: list[tuple[str, str, str]]


def chart(
    title: str, lines: list[Line], y_range: tuple[float | None, float | None] = (None, None), x_label: str = "step"
) -> Chart:
    """Draw curves in one frame, with a legend of those that have a name. Parameters are those of `line_chart`."""
    legend = [(line.style, line.name, str(line.shape)) for line in lines if line.name]
    return Chart(title, line_chart(lines, title, x_label, y_range), legend)


def line_chart(
    lines: list[Line], title: str, x_label: str, y_range: tuple[float | None, float | None] = (None, None)
) -> str:
    """Draw curves in one frame.

    Parameters
    ----------
    lines : list of Line
        Curves with at least one finite point in total.
    title : str
        Text for screen readers.
    x_label : str
        Text below the horizontal axis.
    y_range : tuple of float or None
        Ends of the vertical axis; None takes those of the data.

    Returns
    -------
    str
        An ``<svg>`` element without legend.
    """
    finite = [_thinned(line) for line in lines]
    x_ticks = ticks(*_extent([line.x for line in finite]))
    low, high = _extent([line.y for line in finite])
    y_ticks = ticks(low if y_range[0] is None else y_range[0], high if y_range[1] is None else y_range[1])
    frame = _Frame((x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1]))
    body = [*_grid(frame, x_ticks, y_ticks), *(_mark(frame, line) for line in finite if len(line.x))]
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


class _Frame(NamedTuple):
    """Map data to the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: np.ndarray | float) -> np.ndarray | float:
        """Horizontal position."""
        a, b = self.x_range
        return LEFT + (value - a) / (b - a) * (WIDTH - LEFT - RIGHT)

    def y(self, value: np.ndarray | float) -> np.ndarray | float:
        """Vertical position."""
        a, b = self.y_range
        return HEIGHT - BOTTOM - (value - a) / (b - a) * (HEIGHT - TOP - BOTTOM)


def stacked(x: np.ndarray, parts: dict[str, np.ndarray]) -> list[Line]:
    """Return stacked areas, the first one lowest.

    Parameters
    ----------
    x : ndarray of shape (N,)
        Horizontal positions of all areas.
    parts : dict of str to ndarray of shape (N,)
        Heights by name.
    """
    tops = np.cumsum(list(parts.values()), axis=0)
    bases = [np.zeros(len(x)), *tops[:-1]]
    areas = zip(parts, tops, bases, strict=True)
    return [Line(name, x, top, f"s{i}", "area", base) for i, (name, top, base) in enumerate(areas)]


def _thinned(line: Line) -> Line:
    """Keep at most `MAX_POINTS` finite points."""
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64)
    base = np.zeros(len(x)) if line.base is None else line.base
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & np.isfinite(base))
    chosen = finite[:: max(1, math.ceil(len(finite) / MAX_POINTS))]
    return line._replace(x=x[chosen], y=y[chosen], base=base[chosen])


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


def _mark(frame: _Frame, line: Line) -> str:
    """Draw one curve from `_thinned`."""
    points = _points(frame, line.x, line.y)
    if line.shape == "dots":
        drawn = (f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y in points)
        return f'<g class="{line.style} dots">{"".join(drawn)}</g>'
    if line.shape == "line":
        return f'<polyline class="{line.style}" points="{" ".join(map(",".join, points))}"/>'
    assert line.base is not None
    outline = [*points, *_points(frame, line.x, line.base)[::-1]]
    return f'<polygon class="{line.style} area" points="{" ".join(map(",".join, outline))}"/>'


def _points(frame: _Frame, x: np.ndarray, y: np.ndarray) -> list[tuple[str, str]]:
    places = zip(np.atleast_1d(frame.x(x)), np.atleast_1d(frame.y(y)), strict=True)
    return [(f"{one:.1f}", f"{other:.1f}") for one, other in places]
