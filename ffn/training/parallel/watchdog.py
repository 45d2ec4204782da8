"""Ends a job in which a process is stuck or gone, and names that process.

MPI waits for ever for a process that is stopped or whose machine is gone, and no launcher notices. So a thread of every
process regularly sends rank 0 a datagram with its progress, and rank 0 answers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Set
from typing import NamedTuple, NoReturn

BEATS_PER_LIMIT = 10
MAX_INTERVAL = 5.0  # seconds; 2048 processes then cost rank 0 about 1 % of a core
TOKEN_BYTES = 16
PACKET = struct.Struct(f"!{TOKEN_BYTES}sIQ?")  # token of the job, rank, sync points reached, whether the job ends
RECEIVE_BUFFER = 1 << 22  # bytes; Linux' default of 2^18 holds the datagrams of a few hundred processes
START_SECONDS = 1800.0  # minimum for each part of set-up (one reads all images) and for compiling; our choice


class Address(NamedTuple):
    """Where rank 0 listens (UDP over IPv4), and the token of this job: packets with another one are ignored."""

    host: str
    port: int
    token: str


class Watchdog:
    """Knows how far all processes have come, and ends this one when the job is stuck.

    A sync point is a point of the program where all processes wait for each other. A process that is silent or makes no
    progress for `limit` seconds counts as lost. `now` is a monotonic clock in seconds, and `leave` ends the process
    with an exit code.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        limit: float,
        now: Callable[[], float] = time.monotonic,
        leave: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        self._rank, self._size, self._limit = rank, size, limit
        self._now, self._leave = now, leave
        self._interval = min(MAX_INTERVAL, limit / BEATS_PER_LIMIT)
        self._moved = self._checked = now()
        self._steps = 0
        self._heard: dict[int, float] = {}  # times by rank
        self._peers: dict[int, tuple[str, int]] = {}  # addresses by rank
        self.reached = {rank: 0}  # sync points by rank

    def reach(self, is_step: bool) -> None:
        """Record that this process has reached its next sync point."""
        self._steps += is_step
        self._moved = self._now()
        self.reached[self._rank] += 1

    def problem(self) -> str | None:
        """Describe the process that is lost, or return None. A rank that was never heard may be behind a firewall."""
        now = self._now()
        if silent := {rank for rank, heard in self._heard.items() if now - heard > self._limit}:
            return f"{_named(silent)} did not answer for {self._limit:g} s"
        patience = self._limit if self._steps >= 2 else max(START_SECONDS, self._limit)
        if self._rank != 0:
            patience *= 1.5  # rank 0 knows most, so it acts first
        if now - self._moved <= patience:
            return None
        unheard = set(range(self._size)) - self.reached.keys()
        if unheard and self._rank == 0:
            return f"no step finished for {patience:g} s, and {_named(unheard)} was never heard"
        most = max(self.reached.values())
        if late := {rank for rank, reached in self.reached.items() if reached < most}:
            return f"{_named(late)} made no progress for {patience:g} s while others waited"
        return f"no step finished for {patience:g} s, although all processes have come equally far"

    def listen(self, is_one_machine: bool) -> Address:
        """Open the socket; return its address, and a token that counts if this is rank 0."""
        host = "127.0.0.1" if is_one_machine else ""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        self._socket.bind((host, 0))
        token = secrets.token_hex(TOKEN_BYTES // 2)
        return Address(host or socket.gethostname(), self._socket.getsockname()[1], token)

    def start(self) -> None:
        """Watch the job from a thread that ends with the process."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def join(self, address: Address) -> None:
        """Take the address and the token of rank 0."""
        self._token = address.token.encode()
        if self._rank != 0:
            with contextlib.suppress(OSError):  # a name that is not known here: as behind a firewall
                self._peers[0] = (socket.gethostbyname(address.host), address.port)

    def receive(self) -> None:
        """Wait for one packet and handle it; rank 0 answers it."""
        packet, sender = self._socket.recvfrom(2 * PACKET.size)  # shows one that is too long
        if len(packet) != PACKET.size or not packet.startswith(self._token):
            return
        _, rank, reached, ends = PACKET.unpack(packet)
        self._peers[rank] = sender
        if ends:
            self._end(None)
        self._heard[rank], self.reached[rank] = self._now(), reached
        if self._rank == 0:
            self._send(rank)

    def check(self) -> None:
        """End the job if a process is stuck or gone."""
        now = self._now()
        pause = now - self._checked
        if pause > 3 * self._interval:  # this process itself did not run: it was suspended, and others may have been
            self._moved += pause
            self._heard = {rank: heard + pause for rank, heard in self._heard.items()}
        self._checked = now
        if problem := self.problem():
            self._end(problem)

    def _watch(self) -> NoReturn:
        # staggered: rank 0 would lose most packets if thousands of processes sent at once
        self._listen(self._now() + self._interval * self._rank / self._size)
        self._checked = self._now()
        while True:
            if self._rank != 0:
                self._send(0)
            self._listen(self._checked + self._interval)
            self.check()

    def _listen(self, until: float) -> None:
        """Receive packets up to a time."""
        while (left := until - self._now()) > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(OSError):  # nothing came, or an error about an earlier packet
                self.receive()

    def _send(self, rank: int, ends: bool = False) -> None:
        packet = PACKET.pack(self._token, self._rank, self.reached[self._rank], ends)
        if rank in self._peers:
            with contextlib.suppress(OSError):
                self._socket.sendto(packet, self._peers[rank])

    def _end(self, problem: str | None) -> NoReturn:
        """Leave at once: the main thread may be inside Horovod or MPI, where no exception reaches it."""
        if problem:
            text = f"ffn: error: rank {self._rank}: {problem} (train.stall_seconds), so the job ends. "
            os.write(2, f"{text}The same command resumes from the last checkpoint\n".encode())
        for rank in self._peers if self._rank == 0 else [0]:
            self._send(rank, ends=True)
        self._leave(2)


def _named(ranks: Set[int]) -> str:
    """Name some ranks by number, many by their count."""
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown}{', …' * (len(ranks) > 8)})"
