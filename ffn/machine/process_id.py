"""Name a process so that others, later and elsewhere, can tell whether it is gone."""

from __future__ import annotations

import functools
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

PATTERN = r"(?P<host>[^/]+)-(?P<kernel>[0-9a-f]{8,16})-(?P<namespace>\d+)-(?P<pid>\d{1,9})-(?P<start>\d+)"
INITIAL_NAMESPACE = "4026531836"  # of processes outside containers (Linux: PROC_PID_INIT_INO)


@dataclass(frozen=True)
class ProcessId:
    """A process, as the names of lock and temporary files have it.

    Parameters
    ----------
    host : str
        Name of its machine, for people; two machines or containers may share one.
    kernel : str
        Its machine between two boots.
    namespace : str
        Where `pid` counts; a container may have a namespace of its own.
    pid : int
        Number, which the kernel uses again after the process has ended.
    start : int
        When it started, in clock ticks since the boot.
    """

    host: str
    kernel: str
    namespace: str
    pid: int
    start: int

    @classmethod
    def parse(cls, text: str) -> ProcessId | None:
        """Return the process that `str` gave as this text, None if the text is something else."""
        match = re.fullmatch(PATTERN, text)
        return match and cls(match["host"], match["kernel"], match["namespace"], int(match["pid"]), int(match["start"]))

    def __str__(self) -> str:
        """Return what `parse` takes."""
        return f"{self.host}-{self.kernel}-{self.namespace}-{self.pid}-{self.start}"

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"process {self.pid} on {self.host}"

    @property
    def is_of_this_machine(self) -> bool:
        """Whether this machine started it, and has not been booted since.

        Copies of a virtual machine may have the same boot id. Outside containers, the host's name tells them apart.
        """
        is_same_kernel = self.kernel == _kernel()
        return is_same_kernel and (self.namespace != INITIAL_NAMESPACE or self.host == _host())

    @property
    def is_visible(self) -> bool:
        """Whether this process can see if it runs: on the same machine, in the same container."""
        return self.is_of_this_machine and self.namespace == _namespace()

    @property
    def is_gone(self) -> bool:
        """Whether it has certainly ended; False if it is not visible from here."""
        return self.is_visible and not self._runs()

    def _runs(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is another user's, whose entry in /proc may be hidden
        found = _state_and_start(self.pid)
        return found is None or (found[0] not in "XZ" and found[1] == self.start)


def this_process() -> ProcessId:
    """Return the name of the process that calls this."""
    _, start = _state_and_start(os.getpid()) or ("", 0)
    return ProcessId(_host(), _kernel(), _namespace(), os.getpid(), start)


def _host() -> str:
    return socket.gethostname().split(".")[0]


@functools.cache
def _kernel() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16]
    except OSError:
        return secrets.token_hex(8)  # then nobody is on the same machine, as far as we can tell


def _namespace() -> str:
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))  # pid:[4026531836]
    except OSError:
        return "0"


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Letter of the state, and start in clock ticks since the boot; None if this cannot be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may contain anything
    except OSError:
        return None
    return fields[0], int(fields[19])
