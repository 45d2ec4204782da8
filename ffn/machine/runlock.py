"""Lock a folder for one process, on every file system and over all machines that share it.

Two things keep others out: the kernel's lock, which ends with its process but which Lustre and NFS may lack, or keep to
one machine; and a lease, which works everywhere. What is known of its holder decides. On the same machine, a process is
gone when the process table says so. Elsewhere it is gone when it has given no sign of life for a whole lease.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ffn.errors import ConfigError
from ffn.machine.heartbeat import beating
from ffn.machine.lease import LEASE_SECONDS, Holder, Lease

POLL_SECONDS = 0.5
KERNEL_LOCK = ".lock"  # a file in the locked folder
LEASE = ".lease"  # a folder there
SILENCE = (
    f"Waiting up to {LEASE_SECONDS:g} s for a sign of life from that machine; if there is none, this process takes over"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lock(contextlib.AbstractContextManager["Lock"]):
    """The lock of a folder, which ends with a ``with`` block, when it is closed, or with the process."""

    _held: contextlib.ExitStack
    _beats: contextlib.ExitStack

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Release the lock."""
        self.stop_beats()
        self._held.close()

    def stop_beats(self) -> None:
        """Give no more signs of life, because the folder is about to be renamed.

        The next process may work under the old name at once, and would be taken for one that has taken over.
        """
        self._beats.close()


def lock_run(folder: str | Path) -> None:
    """Lock the folder of a run until this process ends.

    The lock files of Snakemake outlive a killed process and would have to be removed by hand.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    atexit.register(take_lock(folder).close)


def take_lock(folder: str | Path, seconds: float = 0.0) -> Lock:
    """Lock a folder until what is returned is closed, or this process ends.

    If a process on another machine has locked it, wait for a sign of life from it. If there is none for
    `LEASE_SECONDS`, take over; should that process wake up again, it ends itself.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    seconds : float, default 0
        How long to wait for another process to release the lock.

    Returns
    -------
    Lock
        What holds the lock.

    Raises
    ------
    ConfigError
        If another process holds it, or the folder cannot be written to.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            file = stack.enter_context((folder / KERNEL_LOCK).open("a"))
            held = _acquire(file, Lease(folder / LEASE, looks=round(LEASE_SECONDS / POLL_SECONDS)), folder, seconds)
            stack.callback(held.release)
            beats = contextlib.ExitStack()
            beats.enter_context(beating(held.beat))
            return Lock(stack.pop_all(), beats)
    except OSError as reason:
        raise ConfigError(f"{folder}: cannot be locked ({reason}), expected a folder to write to") from None


def _acquire(file: IO[str], lease: Lease, folder: Path, seconds: float) -> Lease:
    """Wait for the lock as `take_lock` describes."""
    deadline, told = time.monotonic() + seconds, ""
    while True:
        is_locked = _is_locked(file)
        holder = lease.look()
        if (holder.is_gone if holder else not is_locked) and lease.claim(holder):
            return lease
        is_alive = _is_alive(holder, is_locked)
        name = holder.title if holder else "another process"
        if is_alive and time.monotonic() >= deadline:
            raise ConfigError(f"{folder}: {name} works on it, expected only one process. Wait for it or stop it")
        message = f"waiting for {name}, which works on it" if is_alive else f"{name} has locked it. {SILENCE}"
        if message != told:
            log.log(logging.INFO if is_alive else logging.WARNING, "%s: %s", folder, message)
            told = message
        time.sleep(POLL_SECONDS)


def _is_alive(holder: Holder | None, is_locked: bool) -> bool:
    """Whether a process certainly works in the folder; the kernel's lock tells only of processes on this machine."""
    if holder and (holder.is_alive or holder.is_gone):
        return holder.is_alive
    return is_locked and (holder is None or (holder.process is not None and holder.process.is_of_this_machine))


def _is_locked(file: IO[str]) -> bool:
    """Try to take the kernel's lock; return whether another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # Lustre may be mounted without locks; then there is only the lease
        return False
    return False
