"""Processes that lock a folder, as if on another machine whose file system has no locks of the kernel."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CODE = """
import errno, fcntl, sys
from ffn.errors import FfnError
from ffn.machine import heartbeat, lease, process_id, runlock

def unsupported(*_):
    raise OSError(errno.ENOLCK, "No locks available")

_, folder, kernel, looks = sys.argv
fcntl.flock = unsupported
heartbeat.BEAT_SECONDS, runlock.POLL_SECONDS = 0.02, 0.01
runlock.LEASE_SECONDS = float(looks) * runlock.POLL_SECONDS
process_id._kernel = lambda: kernel
try:
    lock = runlock.take_lock(folder)
except FfnError as error:
    sys.exit(str(error))
print("locked", flush=True)
input()
lock.close()
"""


@contextlib.contextmanager
def started(folder: Path, kernel: str, looks: int = 10**9, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that locks `folder`, says so in a line, and releases it when it reads a line.

    Parameters
    ----------
    folder : Path
        Folder to lock.
    kernel : str
        What tells machines apart, 8 hexadecimal digits.
    looks : int
        How often it looks at a silent holder before that counts as gone. By default for ever, so that only a sign of
        life decides.
    **variables : str
        The environment.
    """
    arguments = [sys.executable, "-c", CODE, str(folder), kernel, str(looks)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, env=variables or None, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def lock_held(folder: Path, kernel: str) -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the lock of `folder` for the length of the block."""
    with started(folder, kernel) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield process
