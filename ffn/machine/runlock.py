"""One process at a time in a folder; the lock dies with its process, so a killed run can simply be repeated."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from ffn.errors import ConfigError

POLL_SECONDS = 0.2
NO_LOCK = "%s: no lock can be taken (%s): see to it that only one process works on it"

log = logging.getLogger(__name__)

_held: list[IO[str]] = []


def lock_run(folder: str | Path) -> None:
    """Take the lock of a run's folder until this process ends.

    Snakemake's own lock files outlive a killed process and would have to be removed by hand.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    file = take_lock(folder)
    if file is not None:
        _held.append(file)  # closing the file would give the lock back


def take_lock(folder: str | Path, seconds: float = 0.0, here_only: bool = False) -> IO[str] | None:
    """Take the lock of a folder until the file that is returned is closed, or this process ends.

    Parameters
    ----------
    folder : path
        Made where there is none.
    seconds : float, default 0
        How long to wait for a holder that is about to end.
    here_only : bool, default False
        Whether only a holder on this machine counts: a shared file system may keep the locks of one that died.

    Returns
    -------
    file or None
        None where no lock was taken: on a file system without locks, with `here_only` from a holder elsewhere.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    path = Path(folder) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a+"))
        if not _is_taken(file, path.parent, seconds, here_only):
            return None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        stack.pop_all()  # stays open
    return file


def _is_taken(file: IO[str], folder: Path, seconds: float, here_only: bool) -> bool:
    """Take the lock, waiting for it where necessary; see `take_lock`."""
    deadline, is_told = time.monotonic() + seconds, False
    while (failure := _failure(file)) is not None:
        if not isinstance(failure, BlockingIOError):  # Lustre, for one, may be mounted without locks
            log.warning(NO_LOCK, folder, failure)
            return False
        file.seek(0)
        holder = file.read().strip()
        if here_only and holder and not holder.endswith(f" on {socket.gethostname()}"):
            log.warning(NO_LOCK, folder, f"{holder} has it")
            return False
        if time.monotonic() >= deadline:
            name = holder or "another process"
            raise ConfigError(f"{folder}: {name} works on it, one at a time is possible. Wait for it or stop it")
        if not is_told:
            log.info("%s: waiting for %s, which works on it", folder, holder)
            is_told = True
        time.sleep(POLL_SECONDS)
    return True


def _failure(file: IO[str]) -> OSError | None:
    """Try to take the lock; say why that failed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        return reason
    return None
