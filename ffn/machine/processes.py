"""Child processes that end together, and the lock of a folder, which the kernel releases with its process."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ffn.errors import ConfigError

POLL_SECONDS = 0.1
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
GRACE_SECONDS = 30.0  # between SIGTERM, on which training writes a checkpoint, and SIGKILL

LOCK_POLL_SECONDS = 0.5
LOCK_FILE = ".lock"  # in the locked folder

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

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    with handling(FORWARDED, forward):
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
def handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Let a function handle signals for the length of a ``with`` block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def take_lock(folder: str | Path, seconds: float = 0.0) -> IO[str] | None:
    """Lock a folder, which may be new, until the file that is returned is closed, or this process ends.

    If another process holds the lock, this one waits for so many seconds. The result is None if the file system has no
    locks, as Lustre mounted without `flock`.

    Raises
    ------
    ConfigError
        If another process holds the lock, or the folder cannot be written to.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock = Path(folder, LOCK_FILE).open("a+")
    except OSError as reason:
        raise ConfigError(f"{folder}: cannot be locked ({reason}), expected a folder to write to") from None
    deadline, has_told = time.monotonic() + seconds, False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read() or "another process"
            if time.monotonic() >= deadline:
                lock.close()
                found = f"{folder}: {holder} works on it. Wait for it or stop it"
                raise ConfigError(f"{found}; if its machine is down, delete {folder}/{LOCK_FILE}") from None
            if not has_told:
                log.info("%s: waiting for %s, which works on it", folder, holder)
                has_told = True
            time.sleep(LOCK_POLL_SECONDS)
        except OSError:
            log.warning("%s: the file system has no locks, so make sure that only one process works on it", folder)
            lock.close()
            return None
    lock.truncate(0)
    with contextlib.suppress(OSError):  # a full disk, which the first result names
        os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    return lock
