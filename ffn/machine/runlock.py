"""Lock a folder for one process; the lock ends with its process, so a killed run can be repeated at once."""

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
NO_LOCK = "%s: cannot be locked (%s). Make sure that only one process works in it"

log = logging.getLogger(__name__)

_held: list[IO[str]] = []


def lock_run(folder: str | Path) -> None:
    """Lock the folder of a run until this process ends.

    The lock files of Snakemake outlive a killed process and would have to be removed by hand.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    file = take_lock(folder)
    if file is not None:
        _held.append(file)  # closing the file would release the lock


def take_lock(folder: str | Path, seconds: float = 0.0, here_only: bool = False) -> IO[str] | None:
    """Lock a folder until the returned file is closed or this process ends.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    seconds : float, default 0
        How long to wait for another process to release the lock.
    here_only : bool, default False
        Whether to ignore holders on other machines: a shared file system may keep the locks of dead machines.

    Returns
    -------
    file or None
        None if there is no lock: on a file system without locks, or with `here_only` if a process elsewhere holds it.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    path = Path(folder) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("a+"))
        if not _acquire(file, path.parent, seconds, here_only):
            return None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        stack.pop_all()  # stays open
    return file


def _acquire(file: IO[str], folder: Path, seconds: float, here_only: bool) -> bool:
    """Wait for the lock as `take_lock` describes; return whether this process has it."""
    deadline, is_logged = time.monotonic() + seconds, False
    while (failure := _try_lock(file)) is not None:
        if not isinstance(failure, BlockingIOError):  # Lustre may be mounted without locks
            log.warning(NO_LOCK, folder, failure)
            return False
        file.seek(0)
        holder = file.read().strip()
        if here_only and holder and not holder.endswith(f" on {socket.gethostname()}"):
            log.warning(NO_LOCK, folder, f"{holder} has locked it")
            return False
        if time.monotonic() >= deadline:
            name = holder or "another process"
            raise ConfigError(f"{folder}: {name} works on it, expected only one process. Wait for it or stop it")
        if not is_logged:
            log.info("%s: waiting for %s, which works on it", folder, holder)
            is_logged = True
        time.sleep(POLL_SECONDS)
    return True


def _try_lock(file: IO[str]) -> OSError | None:
    """Try to take the lock; return the error if that fails."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as reason:
        return reason
    return None
