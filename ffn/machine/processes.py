"""Run processes that end together."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

POLL_SECONDS = 0.1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
GRACE_SECONDS = 30.0  # between SIGTERM, on which training writes a checkpoint, and SIGKILL

log = logging.getLogger(__name__)


def run_together(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    grace: float = GRACE_SECONDS,
    own_groups: bool = False,
    may_lose: bool = False,
) -> int:
    """Run a command once in each environment; the first process that fails ends all others, after `grace` seconds.

    Where they `may_lose` processes, only the end of the first one ends all.

    SIGTERM, SIGINT and SIGUSR1 are forwarded to all of them. With `own_groups`, each gets its own process group, so
    that a Ctrl-C in a terminal reaches it once; a process that reads from the terminal would be stopped. Returns 0 if
    all ended with 0, else the exit code of the first that failed; 128 + signal if a signal ended it.
    """
    group = 0 if own_groups else None
    processes = [subprocess.Popen(command, env=dict(e), process_group=group) for e in environments]
    with _forwarding(processes):
        failed = _first_failure(processes, may_lose)
        if failed is None:
            _end(processes, grace)
            return 0
        code = exit_code(failed.returncode)
        if len(processes) > 1:
            log.error("process %d ended with exit code %d, so all end", processes.index(failed), code)
        _end(processes, grace)
        return code


@functools.cache
def dying_with_parent(name: str = "TERM") -> tuple[str, ...]:
    """Return the words to put before a command so that it gets this signal when its parent dies.

    They are empty if `setpriv` cannot do it, as before util-linux 2.33 (Enterprise Linux 8).
    """
    words = ("setpriv", "--pdeathsig", name)
    try:
        done = subprocess.run([*words, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return ()
    return words if done.returncode == 0 else ()


def exit_code(returncode: int) -> int:
    """Return the exit code as a shell reports it: 128 + signal if a signal ended the process.

    Examples
    --------
    >>> exit_code(3), exit_code(-9)
    (3, 137)
    """
    return returncode if returncode >= 0 else 128 - returncode


def _first_failure(processes: Sequence[subprocess.Popen[bytes]], may_lose: bool) -> subprocess.Popen[bytes] | None:
    """Wait until one has failed whose failure ends all; return None if those that count have succeeded."""
    lost: set[int] = set()
    while True:
        codes = [process.poll() for process in processes]
        failures = {number: code for number, code in enumerate(codes) if code}
        if failures and (not may_lose or 0 in failures):
            return processes[min(failures)]
        for number in failures.keys() - lost:
            log.error("process %d ended with exit code %d, the others go on", number, exit_code(failures[number]))
        lost |= failures.keys()
        if None not in codes or (may_lose and codes[0] == 0):
            return None
        time.sleep(POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    deadline = time.monotonic() + grace
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _forwarding(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Forward the signals that end a job, for the duration of a ``with`` block."""

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
