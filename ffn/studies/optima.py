"""The best learning rate of each number of workers, and the power law through them, with uncertainties."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

RESAMPLES = 200  # of the scores, to find how their noise moves an optimum


class Optimum(NamedTuple):
    """The learning rate at which the score of one number of workers is highest.

    Parameters
    ----------
    rate : float
        Interpolated between the tried rates.
    log_stddev : float
        Uncertainty of its natural logarithm.
    best_tried : float
        The tried rate with the highest score.
    at_edge : bool
        Whether that is the lowest or highest tried rate, so that the optimum may lie outside.
    """

    rate: float
    log_stddev: float
    best_tried: float
    at_edge: bool


class PowerLaw(NamedTuple):
    """The optimum as ``rate · workers ^ exponent``.

    Parameters
    ----------
    exponent, stddev : float
        The exponent and its standard deviation.
    rate : float
        Rate for one worker.
    num_optima : int
        Number of optima in the fit.
    """

    exponent: float
    stddev: float
    rate: float
    num_optima: int

    @property
    def text(self) -> str:
        """Exponent and uncertainty, with as many digits as are known."""
        return with_uncertainty(self.exponent, self.stddev)


def find_optimum(rates: np.ndarray, scores: np.ndarray, noise: float, rng: np.random.Generator) -> Optimum:
    """Find the highest score by a parabola through the best tried rate and its neighbours.

    Parameters
    ----------
    rates : float ndarray of shape (N,)
        Tried learning rates, ascending, at least 3.
    scores : float ndarray of shape (N,)
        Score of each rate, NaN where training diverged; at least one is finite.
    noise : float
        Standard deviation of a score.
    rng : Generator
        For the resampled scores.

    Notes
    -----
    Where training diverged, the lowest score of the other rates counts. The uncertainty adds two parts: the effect of
    `noise` (the standard deviation of the optimum over scores with added noise), and the deviation of a uniform
    distribution over one step of the grid, because within a step the parabola is a guess.
    """
    logs = np.log(rates)
    lowest = np.nextafter(np.nanmin(scores), -np.inf)  # below all that did not diverge, even if those are equal
    scores = np.where(np.isfinite(scores), scores, lowest)
    best = int(np.argmax(scores))
    moved = [_vertex(logs, scores + noise * rng.standard_normal(len(rates))) for _ in range(RESAMPLES)]
    step = float(np.mean(np.diff(logs)))
    stddev = math.hypot(float(np.std(moved)), step / math.sqrt(12))
    return Optimum(math.exp(_vertex(logs, scores)), stddev, float(rates[best]), best in (0, len(rates) - 1))


def fit_power_law(workers: np.ndarray, optima: list[Optimum]) -> PowerLaw | None:
    """Fit a power law to the optima inside the tried rates, weighted by their uncertainties.

    Parameters
    ----------
    workers : int ndarray of shape (N,)
        Numbers of workers.
    optima : list of N Optimum
        One for each number of workers.

    Returns
    -------
    PowerLaw or None
        None with fewer than three usable optima: two define a line but not its uncertainty.

    Notes
    -----
    Least squares on logarithms. If the optima scatter around the line more than their own uncertainties explain, the
    uncertainty grows by the root of the reduced chi²; it never shrinks.
    """
    usable = [(n, optimum) for n, optimum in zip(workers, optima, strict=True) if not optimum.at_edge]
    if len(usable) < 3:
        return None
    x = np.log([n for n, _ in usable])
    y = np.log([optimum.rate for _, optimum in usable])
    weight = np.array([optimum.log_stddev**-2 for _, optimum in usable])
    centre = np.average(x, weights=weight)
    spread = float(np.sum(weight * (x - centre) ** 2))
    slope = float(np.sum(weight * (x - centre) * y)) / spread
    start = float(np.average(y - slope * x, weights=weight))
    reduced = float(np.sum(weight * (y - start - slope * x) ** 2)) / (len(usable) - 2)
    return PowerLaw(slope, math.sqrt(max(1.0, reduced) / spread), math.exp(start), len(usable))


def with_uncertainty(value: float, stddev: float) -> str:
    """Return a value and its standard deviation, rounded to one digit of the latter; a deviation of 0 is not shown.

    Examples
    --------
    >>> with_uncertainty(0.61803, 0.0871), with_uncertainty(0.61803, 0.31), with_uncertainty(12.34, 2.7)
    ('0.62 ± 0.09', '0.6 ± 0.3', '12 ± 3')
    """
    if stddev == 0:
        return f"{value:.3g}"
    digits = -math.floor(math.log10(stddev))
    if round(stddev, digits) >= 10.0 ** (1 - digits):  # 0.096 is 0.1
        digits -= 1
    shown = max(0, digits)
    return f"{round(value, digits) + 0.0:.{shown}f} ± {round(stddev, digits):.{shown}f}"


def _vertex(x: np.ndarray, y: np.ndarray) -> float:
    """Return the vertex of the parabola through the highest point and its neighbours."""
    best = int(np.argmax(y))
    if best in (0, len(x) - 1):
        return float(x[best])
    left, right = x[best] - x[best - 1], x[best + 1] - x[best]
    rise, fall = (y[best] - y[best - 1]) / left, (y[best] - y[best + 1]) / right
    if rise + fall <= 0:  # all three are equal
        return float(x[best])
    return float(x[best] + (rise * right - fall * left) / (rise + fall) / 2)
