"""One workflow at a time on a run's folder; the lock dies with its process, so a killed run can simply be repeated."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import IO

from ffn.errors import ConfigError

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
    path = Path(folder) / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise ConfigError(
            f"{folder}: {holder} works on this run, one at a time is possible. Wait for it or stop it"
        ) from None
    except OSError as reason:  # a file system without locks, such as Lustre mounted so
        log.warning("%s: no lock can be taken (%s): see to it that only one workflow works on this run", folder, reason)
        file.close()
        return
    file.truncate(0)
    file.write(f"process {os.getpid()}")
    file.flush()
    _held.append(file)  # closing the file would give the lock back
