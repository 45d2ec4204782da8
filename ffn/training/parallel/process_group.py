"""The processes of one training job, which exchange by a few collective calls."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from ffn import errors
from ffn.errors import FfnError
from ffn.training.parallel.watchdog import Address, Watchdog

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")


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

    def all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        """Return equally long vectors of all processes as rows in order of rank; usable inside a graph."""
        return vector[None]

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
        """Return equally large parts of all processes, one behind the other along the first axis."""

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

    def all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        """Return equally long vectors of all processes as rows in order of rank; usable inside a graph."""
        return self.concatenate(vector[None])

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank."""
        self._watchdog.reach(is_step=False)
        return [decode(line) for line in self.gather_bytes(encode(item)).splitlines()]

    def broadcast(self, item: T) -> T:
        """Return the item of rank 0."""
        return self.gather(item if self.rank == 0 else None)[0]  # type: ignore[return-value]


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
