"""Ends a job in which a process is stuck or gone, and says which.

MPI waits for ever for a process that is stopped, or whose machine is gone, and no launcher notices. So a thread of
every process shows rank 0 that the process lives, and how far it is, with a datagram now and then, and rank 0 answers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from typing import NamedTuple, NoReturn

BEATS_PER_LIMIT = 10
MAX_INTERVAL = 5.0  # seconds; 2048 processes then cost rank 0 about 1 % of a core
MESSAGE = struct.Struct("!16sIQ?")  # token of the job, rank, what it has reached, whether the job ends
RECEIVE_BUFFER = 1 << 22  # bytes; Linux gives 2^18 by default, which holds the datagrams of some hundred processes
START_SECONDS = 1800.0  # at least, for each part of set-up (one reads all images) and for compiling; our choice


class Address(NamedTuple):
    """Where rank 0 listens.

    Parameters
    ----------
    hosts : tuple of str
        IPv4 addresses of its machine, of which one will do.
    port : int
        UDP port.
    token : bytes of length 16
        What datagrams of this job begin with.
    """

    hosts: tuple[str, ...]
    port: int
    token: bytes


class Attendance:
    """What one process knows of the others: when they were heard, what they have reached.

    Parameters
    ----------
    rank, size : int
        This process, and how many there are.
    limit : float
        Seconds after which a process that is silent or does not go on counts as lost.
    now : float
        Monotonic time, seconds.
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
        """Note that this process has come to the next point where all wait for each other."""
        if is_step:
            self._steps += 1
        self._moved = now
        self.reached[self.rank] += 1

    def hear(self, rank: int, reached: int, now: float) -> None:
        """Note a sign of life."""
        self._heard[rank] = now
        self.reached[rank] = reached

    def forgive(self, seconds: float) -> None:
        """Leave a time out of account in which this process itself did not run."""
        self._moved += seconds
        self._heard = {rank: heard + seconds for rank, heard in self._heard.items()}

    def problem(self, now: float) -> str | None:
        """Say what is wrong, or None; who was never heard may be behind a firewall."""
        silent = sorted(rank for rank, heard in self._heard.items() if now - heard > self.limit)
        if silent:
            return f"{_named(silent)} did not answer for {self.limit:g} s"
        patience = self.limit if self._steps >= 2 else max(START_SECONDS, self.limit)
        if self.rank != 0:
            patience *= 1.5  # rank 0 knows most and speaks first
        return self._standstill(patience) if now - self._moved > patience else None

    def _standstill(self, seconds: float) -> str:
        unheard = sorted(set(range(self.size)) - self.reached.keys())
        if unheard and self.rank == 0:
            return f"no step ended for {seconds:g} s, and nothing was ever heard of {_named(unheard)}"
        late = [rank for rank, reached in self.reached.items() if reached < max(self.reached.values())]
        if late:
            return f"{_named(sorted(late))} did not go on for {seconds:g} s while others waited"
        return (
            f"no step ended for {seconds:g} s, though all that can be heard of the other processes is in order. "
            "Does a step take that long (virtual workers)? Then set a higher limit"
        )


class Watchdog:
    """The thread that beats and listens.

    Parameters
    ----------
    attendance : Attendance
        What this process knows, to which it adds what it hears.
    """

    def __init__(self, attendance: Attendance) -> None:
        self._attendance = attendance
        self._rank = attendance.rank
        self._interval = min(MAX_INTERVAL, attendance.limit / BEATS_PER_LIMIT)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.bind(("", 0))
        self._peers: dict[int, tuple[str, int]] = {}
        self.address = Address(_own_addresses(), self._socket.getsockname()[1], secrets.token_bytes(16))

    def start(self, address: Address) -> None:
        """Start to watch; `address` is that of rank 0, and the thread ends with the process."""
        self.address = address
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        # one after the other: rank 0 would lose most of what thousands send at once
        self._listen(time.monotonic() + self._interval * self._rank / self._attendance.size)
        last = time.monotonic()
        while True:
            if self._rank != 0:
                self._send(0)
            self._listen(last + self._interval)
            now = time.monotonic()
            if now - last > 3 * self._interval:
                self._attendance.forgive(now - last)
            last = now
            problem = self._attendance.problem(now)
            if problem:
                self._end(problem)

    def _listen(self, until: float) -> None:
        """Take in datagrams up to a time; rank 0 answers each."""
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                datagram, sender = self._socket.recvfrom(MESSAGE.size)
            except OSError:  # nothing came, or a complaint about something sent
                continue
            if len(datagram) != MESSAGE.size or not datagram.startswith(self.address.token):
                continue
            _, rank, reached, ends = MESSAGE.unpack(datagram)
            if 0 not in (rank, self._rank):  # meant for rank 0, whose port on another machine is ours here
                continue
            self._peers[rank] = sender
            if ends:
                self._end(None)
            self._attendance.hear(rank, reached, time.monotonic())
            if self._rank == 0:
                self._send(rank)

    def _send(self, rank: int, ends: bool = False) -> None:
        """Send a sign of life to a process; to rank 0 on all its addresses until it has answered on one."""
        datagram = MESSAGE.pack(self.address.token, self._rank, self._attendance.reached[self._rank], ends)
        known = self._peers.get(rank)
        for target in [known] if known else [(host, self.address.port) for host in self.address.hosts]:
            with contextlib.suppress(OSError):  # no way to that address
                self._socket.sendto(datagram, target)

    def _end(self, problem: str | None) -> NoReturn:
        """Leave at once: the main thread may be inside of Horovod or MPI, where no exception reaches it."""
        if problem:
            text = f"ffn: error: rank {self._rank}: {problem} (train.stall_seconds), so the job ends. "
            os.write(2, f"{text}The same command goes on from the last checkpoint\n".encode())
        for rank in self._peers if self._rank == 0 else [0]:
            self._send(rank, ends=True)
        os._exit(2)


def _own_addresses() -> tuple[str, ...]:
    """IPv4 addresses of this machine."""
    import psutil

    interfaces = psutil.net_if_addrs().values()
    return tuple(entry.address for entries in interfaces for entry in entries if entry.family == socket.AF_INET)


def _named(ranks: list[int]) -> str:
    """Few ranks by number, many by how many they are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}" if len(ranks) <= 8 else f"{len(ranks)} processes (ranks {shown}, …)"
