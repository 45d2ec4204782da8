"""The time of the slowest of many workers: a distribution of step times and its order statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NUM_SHIFTS = 40  # tried between 0 and the shortest time; more would change the fit by less than its error
CHECKED_WORKERS = 16  # a few hundred measured steps still show the longest of this many draws

BISECTIONS = 60  # enough for the precision of a float64

# Maps probabilities to the times that are exceeded with them.
InverseSurvival = Callable[[np.ndarray], np.ndarray]


def expected_order_statistic(inverse_survival: InverseSurvival, num_draws: int, rank: int) -> float:
    """Return the expected `rank`-th smallest of independent draws.

    Parameters
    ----------
    inverse_survival : callable
        Maps a float64 ndarray of probabilities to the values that are exceeded with them.
    num_draws : int
        Number of draws, at least 1.
    rank : int
        1 for the smallest, `num_draws` for the largest.

    Returns
    -------
    float
        Accurate to about six digits for smooth distributions with light tails, to four for a few hundred values.

    Notes
    -----
    The probability that a further draw exceeds the `rank`-th value follows a beta distribution with parameters
    ``num_draws - rank + 1`` and ``rank``. The mean is taken over its quantiles at the levels of a normal variable,
    where the trapezoidal rule converges fast.

    Examples
    --------
    >>> exponential = lambda probability: -np.log(probability)
    >>> round(expected_order_statistic(exponential, 3, 3), 6)  # 1 + 1/2 + 1/3
    1.833333
    """
    from scipy.special import betaincinv, ndtr

    level = np.linspace(-9.0, 9.0, 1201)
    weight = np.exp(-(level**2) / 2)
    exceeded = betaincinv(num_draws - rank + 1, rank, ndtr(level))
    return float(np.sum(weight * inverse_survival(exceeded)) / np.sum(weight))


class StepTimes(NamedTuple):
    """A shifted log-normal distribution of the time of a step.

    Parameters
    ----------
    shift : float
        Minimum time of a step, s.
    log_mean, log_stddev : float
        Mean and standard deviation of the natural logarithm of the rest.
    """

    shift: float
    log_mean: float
    log_stddev: float

    @property
    def mean(self) -> float:
        """Mean time, s."""
        return self.shift + float(np.exp(self.log_mean + self.log_stddev**2 / 2))

    @property
    def variation(self) -> float:
        """Standard deviation relative to the mean."""
        rest = self.mean - self.shift
        return rest * float(np.sqrt(np.expm1(self.log_stddev**2))) / self.mean

    def inverse_survival(self, probability: np.ndarray) -> np.ndarray:
        """Return the times that are exceeded with these probabilities, s."""
        from scipy.special import ndtri

        return self.shift + np.exp(self.log_mean - self.log_stddev * ndtri(probability))

    def survival(self, seconds: np.ndarray) -> np.ndarray:
        """Return the probabilities that a step takes longer; also accurate for tiny ones."""
        from scipy.special import ndtr

        rest = np.maximum(np.asarray(seconds) - self.shift, np.finfo(float).tiny)
        return ndtr((self.log_mean - np.log(rest)) / self.log_stddev)

    def scaled(self, mean: float) -> StepTimes:
        """Return the same relative distribution with another mean, s."""
        factor = mean / self.mean
        return StepTimes(self.shift * factor, self.log_mean + float(np.log(factor)), self.log_stddev)


class MeasuredTimes(NamedTuple):
    """Measured step times; beyond the longest one, those of a fit.

    A fit of all steps would miss a rare kind of slow step, and those are what many workers wait for.

    Parameters
    ----------
    longest_first : float64 ndarray of shape (N,)
        Measured times, s, descending.
    tail : StepTimes
        Distribution fitted to them.
    """

    longest_first: np.ndarray
    tail: StepTimes

    @property
    def mean(self) -> float:
        """Mean time, s."""
        return float(self.longest_first.mean())

    @property
    def variation(self) -> float:
        """Standard deviation relative to the mean."""
        return float(self.longest_first.std()) / self.mean

    def inverse_survival(self, probability: np.ndarray) -> np.ndarray:
        """Return the times that are exceeded with these probabilities, s."""
        number = len(self.longest_first)
        measured = self.longest_first[np.minimum((probability * number).astype(int), number - 1)]
        beyond = np.maximum(self.tail.inverse_survival(probability), self.longest_first[0])
        return np.where(probability >= 1 / number, measured, beyond)

    def survival(self, seconds: np.ndarray) -> np.ndarray:
        """Return the probabilities that a step takes longer."""
        number = len(self.longest_first)
        longer = number - np.searchsorted(self.longest_first[::-1], seconds, side="right")
        return np.where(longer > 0, longer / number, np.minimum(self.tail.survival(seconds), 1 / number))

    def scaled(self, mean: float) -> MeasuredTimes:
        """Return the same relative distribution with another mean, s."""
        factor = mean / self.mean
        return MeasuredTimes(self.longest_first * factor, self.tail.scaled(self.tail.mean * factor))


class Fit(NamedTuple):
    """A fitted distribution and the quality of the fit.

    Parameters
    ----------
    times : StepTimes
        The distribution.
    distance : float
        Largest difference between fitted and measured cumulative probability (Kolmogorov-Smirnov).
    longest_ratio : float
        Expected longest of `CHECKED_WORKERS` draws, fitted over measured: the quality of the measured tail.
    """

    times: StepTimes
    distance: float
    longest_ratio: float


def fit_step_times(seconds: np.ndarray) -> Fit:
    """Fit a shifted log-normal distribution by maximum likelihood.

    Parameters
    ----------
    seconds : float ndarray of shape (N,)
        Measured step times, s; positive, not all equal.
    """
    candidates = [_with_shift(seconds, share * seconds.min()) for share in np.linspace(0, 0.98, NUM_SHIFTS)]
    times = max(candidates, key=lambda candidate: _log_likelihood(candidate, seconds))
    ordered = np.sort(seconds)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    fitted = 1 - times.survival(ordered)
    distance = max(np.max(steps[1:] - fitted), np.max(fitted - steps[:-1]))
    longest = float(np.sum(ordered * np.diff(steps**CHECKED_WORKERS)))
    expected = expected_order_statistic(times.inverse_survival, CHECKED_WORKERS, CHECKED_WORKERS)
    return Fit(times, float(distance), expected / longest)


def with_stragglers(times: StepTimes | MeasuredTimes, rate: float, slowdown: float) -> InverseSurvival:
    """Return the distribution in which a fraction `rate` of the steps takes `slowdown` times as long.

    Notes
    -----
    Its quantiles lie between those of the normal and of the slowed-down steps; bisection finds them.
    """

    def inverse_survival(probability: np.ndarray) -> np.ndarray:
        low = times.inverse_survival(probability)
        high = slowdown * low
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            exceeded = (1 - rate) * times.survival(middle) + rate * times.survival(middle / slowdown)
            low, high = np.where(exceeded > probability, middle, low), np.where(exceeded > probability, high, middle)
        return (low + high) / 2

    return inverse_survival


def _with_shift(seconds: np.ndarray, shift: float) -> StepTimes:
    logs = np.log(seconds - shift)
    return StepTimes(float(shift), float(logs.mean()), max(float(logs.std()), 1e-9))


def _log_likelihood(times: StepTimes, seconds: np.ndarray) -> float:
    logs = np.log(seconds - times.shift)
    z = (logs - times.log_mean) / times.log_stddev
    return float(-np.sum(logs + np.log(times.log_stddev) + z**2 / 2))
