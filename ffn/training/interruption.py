"""Whether this job has to stop: a signal came, or its walltime is nearly over."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from ffn.errors import ConfigError
from ffn.machine.schedulers import slurm

# SIGTERM is what schedulers and launchers send first, SIGUSR1 what they can be asked to send (sbatch --signal)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# End of the job in seconds since 1970, the first that is set counts: what a job script says, what Slurm says
JOB_END_VARIABLES = ("FFN_JOB_END_TIME", slurm.JOB_END_TIME)
# A scheduler that signals all processes reaches a rank directly and through its launcher: that is one signal
ECHO_SECONDS = 3.0

log = logging.getLogger(__name__)


class Interruption:
    """Notes the reasons to stop; the training loop asks once a step, so that a step is never cut in half.

    A second signal of the same kind, a while after the first, does what it did before, SIGTERM: end at once.

    Parameters
    ----------
    walltime_minutes : float or None
        Limit of the job, counted from the start of this process; an earlier end that the environment tells counts.
    margin_seconds : float
        How long before the limit to stop.

    Raises
    ------
    ConfigError
        If the environment tells the end of the job in another form than seconds.
    """

    def __init__(self, walltime_minutes: float | None, margin_seconds: float) -> None:
        self.reason: str | None = None
        self._deadline = _job_end(walltime_minutes)
        self._margin_seconds = margin_seconds
        self._previous: dict[int, Any] = {}
        self._noted: dict[int, float] = {}

    def __enter__(self) -> Interruption:
        """Take over the signals, in the main thread, which alone may."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Give back the signals."""
        for number in list(self._previous):
            self._give_back(number)

    @property
    def requested(self) -> bool:
        """Whether to stop; `reason` then says why."""
        if self.reason is None and self._deadline is not None:
            left = self._deadline - time.time()
            if left <= self._margin_seconds:
                self.reason = f"its walltime, of which {max(0, left):.0f} s were left"
        return self.reason is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._noted.setdefault(number, now) > ECHO_SECONDS:
            self._give_back(number)
            os.kill(os.getpid(), number)
        self.reason = signal.Signals(number).name

    def _give_back(self, number: int) -> None:
        signal.signal(number, self._previous.pop(number))


def _job_end(walltime_minutes: float | None) -> float | None:
    """Time at which the job will be killed, in seconds since 1970."""
    ends = [] if walltime_minutes is None else [_started() + 60 * walltime_minutes]
    name = next(filter(os.environ.get, JOB_END_VARIABLES), None)
    if name is not None:
        end = _end_from_variable(name)
        if end > _started():
            ends.append(end)
        else:
            log.warning(
                "%s: %d is over since before this process started, so it is that of another job, ignored", name, end
            )
    return min(ends, default=None)


def _end_from_variable(name: str) -> float:
    """Return the end of the job that an environment variable tells."""
    value = os.environ[name]
    if not value.isdigit():
        raise ConfigError(f"{name}: found {value!r}, expected seconds since 1970. Correct the variable or unset it")
    return float(value)


def _started() -> float:
    """Start of this process, seconds since 1970; imports may have taken their time."""
    import psutil

    return psutil.Process().create_time()
