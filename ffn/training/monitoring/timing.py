"""Where the time of the training steps goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import numpy as np

StepPart = Literal["input", "compute", "allreduce"]

PARTS: tuple[StepPart, ...] = get_args(StepPart)


class StepClock:
    """Times of the steps since the last lap, without pauses such as a validation.

    Parameters
    ----------
    now : callable
        Seconds on a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._restart()

    @contextlib.contextmanager
    def measure(self, part: StepPart) -> Iterator[None]:
        """Count the time of a ``with`` block as time of `part`."""
        start = self._now()
        yield
        self.add(part, self._now() - start)

    def add(self, part: StepPart, seconds: float) -> None:
        """Count `seconds` as time of `part`."""
        self._seconds[part] += seconds

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Exclude the time of a ``with`` block."""
        start = self._now()
        yield
        self._start += self._now() - start

    def lap(self) -> np.ndarray:
        """Return the times since the last lap and start the next one.

        Returns
        -------
        float64 ndarray of shape (4,)
            Seconds of input, compute, allreduce, and everything else.
        """
        parts = [self._seconds[part] for part in PARTS]
        rest = max(0.0, self._now() - self._start - sum(parts))
        self._restart()
        return np.array([*parts, rest])

    def _restart(self) -> None:
        self._start = self._now()
        self._seconds: dict[StepPart, float] = dict.fromkeys(PARTS, 0.0)
