"""The processes of one training job, which exchange by a few collective calls, and the watchdog that ends it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ffn import errors
from ffn.errors import FfnError

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")

BEATS_PER_LIMIT = 10
MAX_INTERVAL = 5.0  # seconds; 2048 processes then cost rank 0 about 1 % of a core
TOKEN_BYTES = 16
PACKET = struct.Struct(f"!{TOKEN_BYTES}sIQ?")  # token of the job, rank, sync points reached, whether the job ends
RECEIVE_BUFFER = 1 << 22  # bytes; Linux' default of 2^18 holds the datagrams of a few hundred processes
START_SECONDS = 1800.0  # minimum for each part of set-up (one reads all images) and for compiling; our choice


class ProcessGroup:
    """All processes of the job. This class is the group of a single process, which needs no library."""

    rank, size = 0, 1
    local_rank, local_size = 0, 1  # among the processes on this machine

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the (K, N) rows of all processes pairwise, in order of rank, to (N,); usable inside a graph.

        The bits are the same on all processes, and for any number of processes that have these rows together. Rows of
        bfloat16 are added in float32, and their sum is rounded.
        """
        return sum_of(rows)

    def allreduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum the float32 (N,) vectors of all processes in any order, the same on all; usable inside a graph."""
        return vector

    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return equally large parts of all processes end to end, in order of rank; usable inside a graph."""
        return part

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank; see `encode` for their types."""
        return [item]

    def broadcast(self, item: T) -> T:
        """Return the item of rank 0."""
        return item

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Sum an array over all processes, in order of rank."""
        return np.sum(self.gather(array), axis=0)

    def barrier(self) -> None:
        """Wait for all processes."""
        self.gather(None)

    def together(self, action: Callable[[], T]) -> T:
        """Run `action` on all processes; an `FfnError` of any process ends all of them, and rank 0 reports it."""
        outcome = problem = None
        try:
            outcome = action()
        except FfnError as error:
            problem = type(error).__name__, str(error)
        told: list[Any] = self.gather(problem)
        if failures := list(filter(None, told)):
            name, text = failures[0]
            self.fail(getattr(errors, name)(text))
        return outcome  # type: ignore[return-value]  # None only where the action returned it

    def watch(self) -> None:
        """Start the watchdog, which ends the job when a process is stuck or gone. All processes call this together."""

    def beat(self) -> None:
        """Tell the watchdog that this process has reached its next step."""

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        raise error


class JoinedGroup(ProcessGroup, ABC):
    """The processes that a launcher started, over some library's collective calls.

    All processes make the same calls in the same order.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, stall_seconds: float) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self._watchdog = Watchdog(rank, size, stall_seconds)

    @property
    @abstractmethod
    def library(self) -> str:
        """What connects the processes."""

    @abstractmethod
    def allreduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum vectors by the library's own call, see `ProcessGroup.allreduce`."""

    @abstractmethod
    def all_to_all(self, shares: tf.Tensor) -> tf.Tensor:
        """Send the r-th of the (size, …) shares to rank r; return those received, by rank. Usable inside a graph."""

    @abstractmethod
    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return equally large parts of all processes, see `ProcessGroup.concatenate`."""

    @abstractmethod
    def gather_bytes(self, message: bytes) -> bytes:
        """Return the messages of all processes, of any length, one behind the other."""

    def watch(self) -> None:
        """Start the watchdog, which ends the job when a process is stuck or gone. All processes call this together."""
        address = self._watchdog.listen(is_one_machine=self.local_size == self.size)
        self._watchdog.join(Address(*self.broadcast(address)))
        self._watchdog.start()

    def beat(self) -> None:
        """Tell the watchdog that this process has reached its next step."""
        self._watchdog.reach(is_step=True)

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the rows of all processes pairwise, see `ProcessGroup.total`.

        Each process adds one share of the columns and sends its sums to all: as many bytes as a ring allreduce of one
        row, in one message more.
        """
        import tensorflow as tf

        num_rows, num_columns = rows.shape
        padding = -tf.shape(rows)[1] % self.size
        sent = tf.uint16 if rows.dtype == tf.bfloat16 else rows.dtype  # collectives know no bfloat16
        shares = tf.reshape(tf.pad(rows, [[0, 0], [0, padding]]), (num_rows, self.size, -1))
        received = self.all_to_all(tf.bitcast(tf.transpose(shares, (1, 0, 2)), sent))
        share = sum_of(tf.bitcast(tf.reshape(received, (self.size * num_rows, -1)), rows.dtype))
        total = self.concatenate(tf.bitcast(share, sent))[: tf.shape(rows)[1]]
        return tf.ensure_shape(tf.bitcast(total, rows.dtype), (num_columns,))

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank."""
        self._watchdog.reach(is_step=False)
        return [decode(line) for line in self.gather_bytes(encode(item)).splitlines()]

    def broadcast(self, item: T) -> T:
        """Return the item of rank 0."""
        return self.gather(item if self.rank == 0 else None)[0]  # type: ignore[return-value]


class Address(NamedTuple):
    """Where rank 0 listens (UDP over IPv4), and the token of this job: packets with another one are ignored."""

    host: str
    port: int
    token: str


class Watchdog:
    """Knows how far all processes have come, and ends this one when the job is stuck.

    MPI waits for ever for a process that is stopped or whose machine is gone, and no launcher notices. So a thread of
    every process regularly sends rank 0 a datagram with its progress, and rank 0 answers.

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
        if self._rank == 0 and (unheard := set(range(self._size)) - self.reached.keys()):
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


def encode(item: object) -> bytes:
    """Return numbers, strings, arrays, lists and dicts by name as a line of JSON; tuples arrive as lists.

    Unlike unpickling, reading it can never run code of its sender: Gloo's connections have no password.

    Examples
    --------
    >>> decode(encode({"step": 3, "counts": np.arange(2)}))
    {'step': 3, 'counts': array([0, 1])}
    """
    return json.dumps(item, default=_as_json).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Return the item of a line."""
    return json.loads(line, object_hook=_from_json)


def _as_json(item: object) -> dict[str, object]:
    array = np.asarray(item)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{item!r} of type {type(item).__name__} cannot be sent to other processes")
    return {"dtype": array.dtype.str, "shape": array.shape, "base64": base64.b64encode(array.tobytes()).decode()}


def _from_json(content: dict[str, Any]) -> Any:
    if content.keys() != {"dtype", "shape", "base64"}:
        return content
    content_bytes = bytearray(base64.b64decode(content["base64"]))
    return np.frombuffer(content_bytes, content["dtype"]).reshape(content["shape"])[()]


# Sums over all workers have the same bits however the workers are shared out among processes. Neighbouring workers are
# added, then neighbouring sums, and so on; the last one of an odd number waits for the next round. A process has a run
# of neighbouring workers, so it can add whole branches of this tree before it sends anything.


def pairwise_sum(rows: Any) -> Any:
    """Sum the rows of a (K, N) array of any library pairwise; return an array of shape (N,).

    Examples
    --------
    >>> pairwise_sum(np.arange(14).reshape(7, 2)).tolist()
    [42, 49]
    """
    whole = 1 << (rows.shape[0].bit_length() - 1)  # the largest branch of the tree
    rows, rest = rows[:whole], rows[whole:]
    while rows.shape[0] > 1:
        rows = rows[::2] + rows[1::2]
    return rows[0] + pairwise_sum(rest) if rest.shape[0] else rows[0]


def sum_of(rows: tf.Tensor) -> tf.Tensor:
    """Sum rows pairwise in their own type, those of bfloat16 in float32."""
    import tensorflow as tf

    if rows.dtype != tf.bfloat16:
        return pairwise_sum(rows)
    return tf.cast(pairwise_sum(tf.cast(rows, tf.float32)), rows.dtype)


def whole_branches(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Sum the vectors of a process's workers as far as they fill branches of the tree over all workers.

    Every process has equally many vectors, of shape (N,). The result has shape (K, N), where K is the odd part of their
    number: a power of two leaves a single row.
    """
    import tensorflow as tf

    rows = tf.stack(list(vectors))
    while rows.shape[0] % 2 == 0:
        rows = rows[::2] + rows[1::2]
    return rows
