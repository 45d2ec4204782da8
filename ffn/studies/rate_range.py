"""The range test of the learning rate: where the loss falls fastest while the rate grows (Smith 2017)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ffn.provenance import provenance
from ffn.studies.config import RampConfig
from ffn.studies.pages import COLOURS, new_figure, write_study
from ffn.studies.runs import read_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMOOTHED_ROWS = 4  # standard deviation of the Gaussian over them; ours: the loss of a row scatters by a tenth
DIVERGED = 4.0  # times the lowest loss so far: the test has ended, as in fastai


class RangeTest(NamedTuple):
    """The loss of one training whose rate grows, and what it says.

    Parameters
    ----------
    rates, losses : float64 ndarray of shape (N,)
        Rate of each row, and its smoothed loss, up to where training diverged.
    steepest, lowest : float or None
        Rates at which the loss falls fastest, and is lowest; None if it does not fall.
    diverged : bool
        Whether training diverged before the last rate.
    """

    rates: np.ndarray
    losses: np.ndarray
    steepest: float | None
    lowest: float | None
    diverged: bool


def study_rate_range(metrics: list[str], out_path: str, config: RampConfig) -> None:
    """Find where the loss falls fastest, for each number of workers.

    Parameters
    ----------
    metrics : list of str
        Files ``workers-W-rate-R-seed-S.csv`` of trainings with the schedule ``ramp``, one for each number of workers.
    out_path : str
        JSON file; a PNG and an HTML file get the same name.
    config : RampConfig
        Options of the studies.

    Raises
    ------
    EvaluationError
        If a file is missing or of another kind.
    """
    tests = dict(sorted((_read(path, config.ramp_steps) for path in metrics), key=lambda found: found[0]))
    content = {
        "provenance": provenance("study rate-range", config),
        "tests": {
            str(workers): {**test._asdict(), "rates": test.rates.tolist(), "losses": test.losses.tolist()}
            for workers, test in tests.items()
        },
    }
    statements = [_statement(workers, test) for workers, test in tests.items()]
    statements.append(
        "A grid for study.learning_rates reaches from a quarter of the rate of the steepest fall to that of the lowest "
        "loss. The test is coarse: new weights first unlearn their random answers, at whatever rate they can. "
        f"Rates grew from {config.ramp_rates[0]:g} to {config.ramp_rates[1]:g} in {config.ramp_steps} steps."
    )
    write_study(out_path, "Range test of the learning rate", content, _figure(tests), statements)


def range_test(rates: np.ndarray, losses: np.ndarray, is_whole: bool = True) -> RangeTest:
    """Find where the loss falls fastest over the logarithm of the rate.

    Parameters
    ----------
    rates, losses : float64 ndarray of shape (N,)
        Rows of a training whose rate grows by a constant factor.
    is_whole : bool, default True
        Whether training went on to the last rate.

    Examples
    --------
    >>> rates = np.geomspace(1e-6, 1, 121)
    >>> fall, rise = 1 / (1 + (1e-3 / rates) ** 2), (rates / 0.1) ** 4
    >>> found = range_test(rates, 1 - 0.6 * fall + rise)
    >>> f"{found.steepest:.0e} {found.lowest:.0e} {found.diverged}"
    '1e-03 1e-02 True'
    """
    from scipy.ndimage import gaussian_filter1d

    finite = np.isfinite(losses)
    known = losses[: len(losses) if finite.all() else int(finite.argmin())]
    smooth = gaussian_filter1d(known, SMOOTHED_ROWS, mode="nearest") if len(known) else known
    beyond = smooth > DIVERGED * np.minimum.accumulate(smooth)
    smooth = smooth[: int(beyond.argmax()) if beyond.any() else len(smooth)]
    diverged = not is_whole or len(smooth) < len(losses)
    rates = rates[: len(smooth)]
    lowest = int(smooth.argmin()) if len(smooth) else 0
    if lowest < 1:
        return RangeTest(rates, smooth, None, None, diverged)
    slope = np.gradient(smooth, np.log(rates))[: lowest + 1]
    return RangeTest(rates, smooth, float(rates[slope.argmin()]), float(rates[lowest]), diverged)


def _read(path: str, num_steps: int) -> tuple[int, RangeTest]:
    parts, rows = read_rows(Path(path), ("learning_rate", "loss"))
    rates, losses = (np.array([row[name] for row in rows], np.float64) for name in ("learning_rate", "loss"))
    return int(parts["workers"]), range_test(rates, losses, bool(rows) and rows[-1]["step"] >= num_steps)


def _statement(workers: int, test: RangeTest) -> str:
    if test.steepest is None:
        return f"With {workers} workers the loss does not fall. Take lower study.ramp_rates or more study.ramp_steps."
    end = f" and training diverges above {test.rates[-1]:.1g}" if test.diverged else ""
    return (
        f"With {workers} workers the loss falls fastest at a rate of {test.steepest:.1g}, is lowest at "
        f"{test.lowest:.1g}{end}."
    )


def _figure(tests: dict[int, RangeTest]) -> Figure:
    """Draw the smoothed loss over the rate, with the steepest fall of each number of workers."""
    figure, (panel,) = new_figure(1)
    for colour, (workers, test) in zip(COLOURS * len(tests), tests.items(), strict=False):
        panel.plot(test.rates, test.losses, color=colour, label=f"{workers}")
        if test.steepest is not None:
            at = np.interp(np.log(test.steepest), np.log(test.rates), test.losses)
            panel.plot(test.steepest, at, "o", color=colour)
    panel.set(xscale="log", xlabel="learning rate", ylabel="loss, smoothed")
    panel.legend(title="workers", fontsize=8)
    return figure
