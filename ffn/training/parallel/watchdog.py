"""Ends a job in which a process is stuck or gone, and names that process.

MPI waits for ever for a process that is stopped or whose machine is gone, and no launcher notices. So a thread of every
process regularly sends rank 0 a datagram that tells how far the process is, and rank 0 answers.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

BEATS_PER_LIMIT = 10
MAX_INTERVAL = 5.0  # seconds; 2048 processes then cost rank 0 about 1 % of a core
FIELDS = struct.Struct("!IQQ?")  # those of `Sign`
SIGNATURE_BYTES = 16  # of HMAC-SHA256, behind the fields
LOOPBACK = "127.0.0.1"
RECEIVE_BUFFER = 1 << 22  # bytes; Linux' default of 2^18 holds the datagrams of a few hundred processes
START_SECONDS = 1800.0  # minimum for each part of set-up (one reads all images) and for compiling; our choice


class Address(NamedTuple):
    """The address of rank 0.

    Parameters
    ----------
    hosts : tuple of str
        IPv4 addresses of its machine. At least one must be reachable.
    port : int
        UDP port.
    key : bytes
        Signs the datagrams of this job; those of others are ignored.
    """

    hosts: tuple[str, ...]
    port: int
    key: bytes


class Sign(NamedTuple):
    """A sign of life.

    Parameters
    ----------
    rank : int
        Who sent it.
    number : int
        Higher than that of all earlier ones of this sender, so that nobody can send one again.
    reached : int
        Number of sync points that the sender has reached.
    ends : bool
        Whether the job ends.
    """

    rank: int
    number: int
    reached: int
    ends: bool = False

    def signed(self, key: bytes) -> bytes:
        """Return the datagram."""
        fields = FIELDS.pack(*self)
        return fields + _signature(key, fields)

    @classmethod
    def verified(cls, key: bytes, datagram: bytes) -> Sign | None:
        """Read a datagram; None if it is not one of this job."""
        fields, signature = datagram[: FIELDS.size], datagram[FIELDS.size :]
        is_ours = len(fields) == FIELDS.size and hmac.compare_digest(signature, _signature(key, fields))
        return cls(*FIELDS.unpack(fields)) if is_ours else None


class Attendance:
    """What one process knows about the others: when it last heard them, and how far they are.

    A sync point is a point of the program where all processes wait for each other.

    Parameters
    ----------
    rank, size : int
        Rank of this process; number of processes.
    limit : float
        Seconds after which a process that is silent or makes no progress counts as lost.
    now : float
        Monotonic time, seconds.

    Attributes
    ----------
    reached : dict of int to int
        Number of sync points that each rank has reached, as far as this process knows.
    """

    def __init__(self, rank: int, size: int, limit: float, now: float) -> None:
        self.rank = rank
        self.limit = limit
        self.size = size
        self._moved = now
        self._steps = 0
        self._heard: dict[int, float] = {}
        self.reached = {rank: 0}

    def reach(self, now: float, is_step: bool) -> None:
        """Record that this process has reached its next sync point."""
        if is_step:
            self._steps += 1
        self._moved = now
        self.reached[self.rank] += 1

    def hear(self, rank: int, reached: int, now: float) -> None:
        """Record a sign of life."""
        self._heard[rank] = now
        self.reached[rank] = reached

    def forgive(self, seconds: float) -> None:
        """Ignore a period in which this process itself did not run."""
        self._moved += seconds
        self._heard = {rank: heard + seconds for rank, heard in self._heard.items()}

    def problem(self, now: float) -> str | None:
        """Describe what is wrong, or return None. A rank that was never heard may be behind a firewall."""
        silent = sorted(rank for rank, heard in self._heard.items() if now - heard > self.limit)
        if silent:
            return f"{_named(silent)} did not answer for {self.limit:g} s"
        patience = self.limit if self._steps >= 2 else max(START_SECONDS, self.limit)
        if self.rank != 0:
            patience *= 1.5  # rank 0 knows most, so it acts first
        return self._standstill(patience) if now - self._moved > patience else None

    def _standstill(self, seconds: float) -> str:
        unheard = sorted(set(range(self.size)) - self.reached.keys())
        if unheard and self.rank == 0:
            return f"no step finished for {seconds:g} s, and no sign of life ever came from {_named(unheard)}"
        late = [rank for rank, reached in self.reached.items() if reached < max(self.reached.values())]
        if late:
            return f"{_named(sorted(late))} made no progress for {seconds:g} s while others waited"
        return (
            f"no step finished for {seconds:g} s, although all processes that can be heard have come equally far. "
            "If a step takes that long (virtual workers), raise the limit"
        )


class Watchdog:
    """Sends and receives signs of life, and ends the process when the job is stuck.

    Parameters
    ----------
    attendance : Attendance
        What this process knows. The watchdog adds what it hears.
    host : str
        IPv4 address to listen at; empty for all of this machine.
    now : callable
        Monotonic clock, seconds.
    leave : callable
        Ends the process with an exit code.
    """

    def __init__(
        self,
        attendance: Attendance,
        host: str = "",
        now: Callable[[], float] = time.monotonic,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._attendance = attendance
        self._now = now
        self._leave = leave
        self._rank = attendance.rank
        self._interval = min(MAX_INTERVAL, attendance.limit / BEATS_PER_LIMIT)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.bind((host, 0))
        self._peers: dict[int, tuple[str, int]] = {}
        self._sent = 0
        self._numbers: dict[int, int] = {}  # of the last sign of each rank
        hosts = (host,) if host else _own_addresses()
        self.address = Address(hosts, self._socket.getsockname()[1], secrets.token_bytes())
        self._checked = now()

    def start(self, address: Address) -> None:
        """Watch the job from a thread that ends with the process; `address` is that of rank 0."""
        self.address = address
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self) -> None:
        """Send a sign of life to rank 0."""
        if self._rank != 0:
            self._send(0)

    def receive(self) -> None:
        """Wait for one datagram and handle it; rank 0 answers it."""
        datagram, sender = self._socket.recvfrom(FIELDS.size + SIGNATURE_BYTES + 1)  # shows one that is too long
        sign = Sign.verified(self.address.key, datagram)
        if sign is None or sign.number <= self._numbers.get(sign.rank, 0):
            return
        if (sign.rank == 0) == (self._rank == 0):  # meant for rank 0 of another machine, at the same port; or our own
            return
        self._numbers[sign.rank] = sign.number
        self._peers[sign.rank] = sender
        if sign.ends:
            self._end(None)
        self._attendance.hear(sign.rank, sign.reached, self._now())
        if self._rank == 0:
            self._send(sign.rank)

    def check(self) -> None:
        """End the job if a process is stuck or gone."""
        now = self._now()
        if now - self._checked > 3 * self._interval:
            self._attendance.forgive(now - self._checked)
        self._checked = now
        if problem := self._attendance.problem(now):
            self._end(problem)

    def _watch(self) -> NoReturn:
        # staggered: rank 0 would lose most datagrams if thousands of processes sent at once
        self._listen(self._now() + self._interval * self._rank / self._attendance.size)
        self._checked = self._now()
        while True:
            self.beat()
            self._listen(self._checked + self._interval)
            self.check()

    def _listen(self, until: float) -> None:
        """Receive datagrams up to a time."""
        while (left := until - self._now()) > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(OSError):  # nothing came, or an error about an earlier datagram
                self.receive()

    def _send(self, rank: int, ends: bool = False) -> None:
        """Send a sign of life to a process. Rank 0 gets it on all its addresses until it has answered from one."""
        self._sent += 1
        sign = Sign(self._rank, self._sent, self._attendance.reached[self._rank], ends)
        datagram = sign.signed(self.address.key)
        known = self._peers.get(rank)
        for target in [known] if known else [(host, self.address.port) for host in self.address.hosts]:
            with contextlib.suppress(OSError):  # no route to that address
                self._socket.sendto(datagram, target)

    def _end(self, problem: str | None) -> NoReturn:
        """Leave at once: the main thread may be inside Horovod or MPI, where no exception reaches it."""
        if problem:
            text = f"ffn: error: rank {self._rank}: {problem} (train.stall_seconds), so the job ends. "
            os.write(2, f"{text}The same command resumes from the last checkpoint\n".encode())
        for rank in self._peers if self._rank == 0 else [0]:
            self._send(rank, ends=True)
        self._leave(2)


def _signature(key: bytes, fields: bytes) -> bytes:
    return hmac.digest(key, fields, "sha256")[:SIGNATURE_BYTES]


def _own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this machine."""
    import psutil

    interfaces = psutil.net_if_addrs().values()
    return tuple(entry.address for entries in interfaces for entry in entries if entry.family == socket.AF_INET)


def _named(ranks: list[int]) -> str:
    """Name a few ranks by number, many by their count."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" if len(ranks) <= 8 else f"{len(ranks)} processes (ranks {shown}, …)"
