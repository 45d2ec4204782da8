"""The processes of one training job: a thin layer over Horovod, or a single process without it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from ffn import errors
from ffn.errors import FfnError, TrainError
from ffn.machine.launchers import LaunchedRank, launched_rank
from ffn.machine.rendezvous.relay import relayed
from ffn.training.parallel.messages import LENGTH_BYTES, decode, encode, join, split
from ffn.training.parallel.sums import pairwise_sum
from ffn.training.parallel.watchdog import LOOPBACK, START_SECONDS, Address, Attendance, Watchdog

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")

MEETING_SECONDS = 600  # minimum for all processes to load TensorFlow from a busy file system; our choice

log = logging.getLogger(__name__)


class ProcessGroup:
    """All processes of the job. This class is the group of a single process, which needs no Horovod.

    Attributes
    ----------
    rank, size : int
        Rank of this process; number of processes.
    local_rank, local_size : int
        The same for the processes on this machine.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the rows of all processes pairwise, in order of rank; usable inside a graph.

        Parameters
        ----------
        rows : float Tensor of shape (K, N)
            What this process adds. All processes have equally many rows.

        Returns
        -------
        Tensor of shape (N,)
            The same bits on all processes, and for any number of processes that have these rows together.
        """
        return pairwise_sum(rows)

    def all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        """Return equally long vectors of all processes as rows in order of rank; usable inside a graph."""
        return vector[None]

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank; `messages.encode` says what can be sent."""
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
        """Run `action` on all processes; an `FfnError` of any process ends all of them, and rank 0 reports it.

        Raises
        ------
        FfnError
            On rank 0, the error of the lowest rank that failed. The other ranks exit with 2.
        """
        outcome, error = _attempt(action)
        failures = [failure for failure in self.gather(error and (type(error).__name__, str(error))) if failure]
        if failures:
            self.fail(error or _error(*failures[0]))
        return outcome  # type: ignore[return-value]  # None only where the action returned it

    def watch(self) -> None:
        """Start the watchdog, which ends the job when a process is stuck or gone. All processes call this together."""

    def beat(self) -> None:
        """Tell the watchdog that this process has reached its next step."""

    def start_timeline(self, file: Path) -> None:
        """Start to record Horovod's timeline on rank 0. A single process without Horovod has nothing to record."""
        log.info("no timeline in %s: a single process does not use Horovod", file)

    def stop_timeline(self) -> None:
        """Stop recording and close the file."""

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        raise error


class HorovodGroup(ProcessGroup):
    """The processes that a launcher started."""

    def __init__(self, hvd: Any, stall_seconds: float) -> None:
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()
        self._attendance = Attendance(self.rank, self.size, stall_seconds, time.monotonic())

    def watch(self) -> None:
        """Start the watchdog, which ends the job when a process is stuck or gone. All processes call this together."""
        watchdog = Watchdog(self._attendance, LOOPBACK if self.local_size == self.size else "")
        watchdog.start(Address(*self.broadcast(watchdog.address)))

    def beat(self) -> None:
        """Tell the watchdog that this process has reached its next step."""
        self._attendance.reach(time.monotonic(), is_step=True)

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the rows of all processes pairwise, see `ProcessGroup.total`.

        Notes
        -----
        An allreduce adds in an order of its own, which does not matter for one row of each of two processes. Otherwise
        each process adds one share of the columns and sends its sums to all: as many bytes as a ring allreduce of one
        row, in one message more.
        """
        import tensorflow as tf

        kind, (num_rows, num_columns) = rows.dtype.name, rows.shape
        if self.size == 2 and num_rows == 1:
            return self._hvd.allreduce(rows[0], op=self._hvd.Sum, name=f"total_{kind}")
        padding = -tf.shape(rows)[1] % self.size
        shares = tf.reshape(tf.pad(rows, [[0, 0], [0, padding]]), (num_rows, self.size, -1))
        received = self._hvd.alltoall(tf.transpose(shares, (1, 0, 2)), name=f"shares_{kind}")
        share = pairwise_sum(tf.reshape(received, (self.size * num_rows, -1)))
        total = self._hvd.allgather(share, name=f"total_{kind}")[: tf.shape(rows)[1]]
        return tf.ensure_shape(total, (num_columns,))

    def all_gather(self, vector: tf.Tensor) -> tf.Tensor:
        """Return equally long vectors of all processes as rows in order of rank; usable inside a graph."""
        return self._hvd.allgather(vector[None], name="all_gather")

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank."""
        self._attendance.reach(time.monotonic(), is_step=False)
        gathered = self._hvd.allgather(_tensor(join([encode(item)])), name="gather")
        return [decode(message) for message in split(gathered.numpy().tobytes())]

    def broadcast(self, item: T) -> T:
        """Return the item of rank 0."""
        self._attendance.reach(time.monotonic(), is_step=False)
        message = encode(item) if self.rank == 0 else b""
        length = _tensor(len(message).to_bytes(LENGTH_BYTES, "big"))
        length = self._hvd.broadcast(length, root_rank=0, name="broadcast_length")
        room = _tensor(message.ljust(int.from_bytes(length.numpy().tobytes(), "big")))
        return decode(self._hvd.broadcast(room, root_rank=0, name="broadcast").numpy().tobytes())

    def start_timeline(self, file: Path) -> None:
        """Start to record Horovod's timeline on rank 0, for chrome://tracing."""
        self._hvd.start_timeline(str(file), mark_cycles=True)

    def stop_timeline(self) -> None:
        """Stop recording and close the file."""
        self._hvd.stop_timeline()

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        if self.rank == 0:
            raise error
        # a launcher stops everything when the first rank ends, so wait until rank 0 has told the user
        with contextlib.suppress(Exception):  # fails when rank 0 is gone
            self.barrier()
        raise SystemExit(2)


@contextlib.contextmanager
def process_group(num_workers: int, stall_seconds: int, with_timeline: bool = False) -> Iterator[ProcessGroup]:
    """Join the processes of this job for the length of a ``with`` block.

    Parameters
    ----------
    num_workers : int
        Number of processes in the configuration.
    stall_seconds : int
        If a process is stuck or gone for this long, all processes end.
    with_timeline : bool, default False
        Whether `ProcessGroup.start_timeline` may be called.

    Raises
    ------
    TrainError
        If another number of processes started, or if one of them ended early.
    """
    launch = launched_rank()
    if num_workers == 1 and launch in (None, LaunchedRank(0, 1)):
        yield ProcessGroup()
        return
    group = HorovodGroup(_start_horovod(stall_seconds, with_timeline), stall_seconds)
    _refuse_copies(launch, group)
    if group.size != num_workers:
        group.fail(
            TrainError(
                f"train.num_workers: found a job of size {group.size}, expected {num_workers} processes. "
                f"Launch with 'ffn launch -n {num_workers} -- ffn train …', or as {num_workers} tasks of one MPI job"
            )
        )
    with _peer_failures_explained(group):
        yield group


def _refuse_copies(launch: LaunchedRank | None, group: ProcessGroup) -> None:
    """Refuse to run as one of several separate jobs that would all write the same files."""
    if launch is None or group.size > 1 or launch in (LaunchedRank(0, 1), LaunchedRank(0, None)):
        return
    started = f"{launch.size} processes" if launch.size else f"process {launch.rank}"
    raise TrainError(
        f"train.num_workers: the launcher started {started}, but Horovod sees only one, expected one job. "
        "Check that Horovod was built with MPI ('horovodrun --check-build') and that the launcher is of the same MPI"
    )


def _attempt(action: Callable[[], T]) -> tuple[T | None, FfnError | None]:
    try:
        return action(), None
    except FfnError as error:
        return None, error


def _error(name: str, text: str) -> FfnError:
    """Return the error of another process."""
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return classes.get(name, FfnError)(text)


def _tensor(message: bytes) -> tf.Tensor:
    import tensorflow as tf

    return tf.convert_to_tensor(np.frombuffer(message, np.uint8))


def _start_horovod(stall_seconds: int, with_timeline: bool) -> Any:
    # By default Horovod waits for a stuck process for ever. Its own checks warn early, and are the second line of
    # defence behind the watchdog, which knows more and should act first, during set-up too.
    gloo = os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    settings: dict[str, Any] = {
        "HOROVOD_CYCLE_TIME": _cycle_milliseconds(gloo),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": max(1, stall_seconds // 2),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 2 * max(stall_seconds, round(START_SECONDS)),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": max(2 * stall_seconds, MEETING_SECONDS),
    }
    if with_timeline:  # its writer keeps a third of a core busy even while it records nothing
        settings["HOROVOD_TIMELINE"] = "DYNAMIC"
    for name, value in settings.items():
        os.environ.setdefault(name, str(value))
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        raise TrainError(f"train.num_workers: Horovod cannot be imported ({reason}). Run make setup") from None
    before = _threads()
    with relayed():
        hvd.init()
    if gloo and not hvd.nccl_built():  # these threads later start NCCL's, which would inherit the scheduling class
        _make_batch_threads(_threads() - before)
    return hvd


def _cycle_milliseconds(gloo: bool) -> int:
    """Return Horovod's cycle time, after which all ranks look for tensors to exchange.

    With ``envs/horovod-wakes-up.patch`` the ranks look as soon as there is a tensor. The cycle then only serves to
    notice that another rank is gone. Without the patch, as in a site's own Horovod, a tensor waits for the next cycle,
    and with MPI the ranks that arrive first keep a core busy.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("horovod").endswith("+ffn"):
            return 100
    return 1 if gloo else 5


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _make_batch_threads(threads: set[int]) -> None:
    """Put threads into Linux' batch class, where waking threads do not preempt a thread that computes.

    Gloo's threads then do not interrupt each other: an exchange takes 3.5 instead of 5.5 ms, and with a cycle of 1 ms
    Horovod needs a third of the processor time. Unlike with ``SCHED_IDLE``, they keep their share of a busy core.
    """
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread ended, or the system forbids it: slower, but not wrong
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def _peer_failures_explained(group: HorovodGroup) -> Iterator[None]:
    """Turn Horovod's exception for a lost process into an error of one line."""
    import tensorflow as tf
    from horovod.common.exceptions import HorovodInternalError

    try:
        yield
    except (HorovodInternalError, tf.errors.UnknownError, tf.errors.AbortedError) as reason:
        if not isinstance(reason, HorovodInternalError) and "horovod" not in str(reason).lower():
            raise  # GPU failures have the same type
        log.debug("rank %d: %s", group.rank, reason)
        raise TrainError(f"rank {group.rank}: stopped because another process of the job has ended or hangs") from None
