"""The right of one process to work in a folder, on any file system, for as long as it shows signs of life.

A lease is a folder with a single file, which is named after the holder and touched in every heartbeat. A folder can be
renamed to the name of another one only if that is empty. So among those who claim a lease at the same time, one
succeeds. Who takes over from a dead holder first removes the file of that name, which no other holder has.

`filelock` 4 has leases too. It is not used: it would be a dependency of 4000 lines, and it cannot name the processes
that temporary files belong to (`process_id`), which is half of what a lease needs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from ffn.machine.process_id import ProcessId, this_process

LEASE_SECONDS = 120.0  # twelve heartbeats, because shared file systems stall; our choice
TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)  # ENOENT: the new holder has removed what we prepared
LOST = "%s: %s has taken over, because this process gave no sign of life for %g s. This process ends"

log = logging.getLogger(__name__)


class Holder(NamedTuple):
    """Who has the lease, and what is known of it. If it is neither alive nor gone, that is not known yet.

    Parameters
    ----------
    name : str
        Name of its file.
    process : ProcessId or None
        None if the file is not one of ours.
    is_alive, is_gone : bool
        Whether it lives; whether it has ended, or has given no sign of life for `LEASE_SECONDS`.
    """

    name: str
    process: ProcessId | None
    is_alive: bool
    is_gone: bool

    @property
    def title(self) -> str:
        """What messages call it."""
        return _title(self.name)


class Lease:
    """A lease that this process has or wants.

    Parameters
    ----------
    path : Path
        The lease, in the folder that it is for.
    looks : int
        Calls of `look` in `LEASE_SECONDS`. They are counted, because the clocks of two machines may differ, and because
        the caller, too, may be suspended.
    """

    def __init__(self, path: Path, looks: int) -> None:
        self._path = path
        self._looks = looks
        self._own = this_process()
        self._seen: tuple[str, int] | None = None
        self._has_beaten = False
        self._unchanged = 0
        self._unread = 0

    def look(self) -> Holder | None:
        """Return the holder, None if there is none. If it cannot be read for a whole lease, that is an error."""
        try:
            seen = self._read()
        except OSError:  # ESTALE, or EACCES for a moment, of a network file system
            self._unread += 1
            if self._unread > self._looks:
                raise
            return Holder("", None, is_alive=False, is_gone=False)
        self._unread = 0
        if seen is None:
            return None
        is_same = self._seen is not None and self._seen[0] == seen[0]
        is_unchanged = self._seen == seen
        self._has_beaten = is_same and (self._has_beaten or not is_unchanged)
        self._unchanged = self._unchanged + 1 if is_unchanged else 0
        self._seen = seen
        process = ProcessId.parse(seen[0])
        if process and process.is_visible:
            return Holder(seen[0], process, not process.is_gone, process.is_gone)
        is_silent = self._unchanged >= self._looks
        return Holder(seen[0], process, self._has_beaten and not is_silent, is_silent)

    def claim(self, gone: Holder | None) -> bool:
        """Try to get the lease, from a holder that is gone if there is one; return whether this process has it."""
        prepared = self._path.with_name(f"{self._path.name}-{self._own}")
        try:
            prepared.mkdir(exist_ok=True)
            (prepared / str(self._own)).touch()
            if gone:
                (self._path / gone.name).unlink(missing_ok=True)
            prepared.rename(self._path)
        except OSError as reason:
            if reason.errno not in TAKEN:
                raise
        finally:
            shutil.rmtree(prepared, ignore_errors=True)
        if not self._is_ours():
            return False
        for other in self._path.parent.glob(f"{self._path.name}-*"):  # of processes that were killed in here, or lost
            shutil.rmtree(other, ignore_errors=True)
        return True

    def beat(self) -> None:
        """Show a sign of life. If another process has taken over, end this one at once: both would write."""
        try:
            os.utime(self._path / str(self._own))
        except FileNotFoundError:
            if self._path.exists():  # otherwise the whole folder was removed
                seen = None
                with contextlib.suppress(OSError):
                    seen = self._read()
                log.critical(LOST, self._path.parent, _title(seen[0] if seen else ""), LEASE_SECONDS)
                os._exit(2)
        except OSError as reason:  # the next beat may succeed
            log.debug("%s: no heartbeat (%s)", self._path, reason)

    def release(self) -> None:
        """Give the lease back."""
        if self._own.pid == os.getpid():  # not in a fork of the holder
            with contextlib.suppress(OSError):
                (self._path / str(self._own)).unlink()
                self._path.rmdir()

    def _is_ours(self) -> bool:
        return (self._path / str(self._own)).exists()

    def _read(self) -> tuple[str, int] | None:
        """Name of the holder's file, and when it was last touched."""
        try:
            name = max(os.listdir(self._path))
            # Opening a file asks the server, where `stat` may answer from the cache of a network file system.
            with (self._path / name).open("rb") as file:
                return name, os.fstat(file.fileno()).st_mtime_ns
        except (FileNotFoundError, ValueError):  # no folder, or an empty one
            return None


def _title(name: str) -> str:
    """Return what messages call the process that a file is named after."""
    process = ProcessId.parse(name)
    return process.title if process else "another process"
