"""Lock a folder for one process. The kernel releases the lock with the process, also after a kill -9."""

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

POLL_SECONDS = 0.5
LOCK_FILE = ".lock"  # in the locked folder

log = logging.getLogger(__name__)


def take_lock(folder: str | Path, seconds: float = 0.0) -> IO[str] | None:
    """Lock a folder until the file that is returned is closed, or this process ends.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    seconds : float, default 0
        How long to wait for another process to release the lock.

    Returns
    -------
    file or None
        A context manager; None if the file system has no locks, as Lustre mounted without `flock`.

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
            time.sleep(POLL_SECONDS)
        except OSError:
            log.warning("%s: the file system has no locks, so make sure that only one process works on it", folder)
            lock.close()
            return None
    lock.truncate(0)
    with contextlib.suppress(OSError):  # a full disk, which the first result names
        os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    return lock
