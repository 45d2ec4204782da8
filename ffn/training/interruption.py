"""Reasons to stop a job early: a signal, or the end of its walltime."""

from __future__ import annotations

import logging
import os
import signal
import time
from types import FrameType

from ffn.errors import ConfigError
from ffn.machine.schedulers import slurm

# Schedulers and launchers send SIGTERM first; they can be asked to send SIGUSR1 (sbatch --signal).
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
# End of the job in seconds since 1970, from the job script or from Slurm. The first variable that is set counts.
JOB_END_VARIABLES = ("FFN_JOB_END_TIME", slurm.JOB_END_TIME)
MARGIN_SECONDS = 120.0  # before the end of the job at which training stops, for a step and a checkpoint; our choice

log = logging.getLogger(__name__)


class Interruption:
    """Records reasons to stop. The training loop asks once per step, so no step is cut in half."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._deadline = _job_end()

    def __enter__(self) -> Interruption:
        """Take over the signals."""
        self._previous = {number: signal.signal(number, self._record) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        """Whether to stop. If so, `reason` says why."""
        if self.reason is None and self._deadline is not None:
            left = self._deadline - time.time()
            if left <= MARGIN_SECONDS:
                self.reason = f"its walltime, with {max(0, left):.0f} s left"
        return self.reason is not None

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name


def _job_end() -> float | None:
    """Time at which the job will be killed, in seconds since 1970."""
    name = next(filter(os.environ.get, JOB_END_VARIABLES), None)
    if name is None:
        return None
    value = os.environ[name]
    if not value.isdigit():
        raise ConfigError(f"{name}: found {value!r}, expected seconds since 1970. Correct or unset the variable")
    if float(value) > time.time():
        return float(value)
    log.warning("%s: %s is over, so it is the end of another job. Ignored", name, value)
    return None
