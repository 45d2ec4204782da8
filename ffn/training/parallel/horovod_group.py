"""The processes of one training job over Horovod, with MPI or Gloo."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ffn.errors import FfnError, TrainError
from ffn.machine.rendezvous import relayed
from ffn.training.parallel.process_group import JoinedGroup
from ffn.training.parallel.watchdog import START_SECONDS

if TYPE_CHECKING:
    import tensorflow as tf

LENGTH_BYTES = 8  # of the length of a broadcast message
MEETING_SECONDS = 600  # minimum for all processes to copy and load TensorFlow; our choice

log = logging.getLogger(__name__)


class HorovodGroup(JoinedGroup):
    """The processes of a job of Horovod."""

    def __init__(self, hvd: Any, stall_seconds: float) -> None:
        super().__init__(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), stall_seconds)
        self._hvd = hvd

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the rows of all processes pairwise, see `ProcessGroup.total`.

        An allreduce adds in an order of its own, which does not matter for one row of each of two processes.
        """
        if self.size == 2 and rows.shape[0] == 1:
            return self._hvd.allreduce(rows[0], op=self._hvd.Sum, name=f"total_{rows.dtype.name}")
        return super().total(rows)

    def all_to_all(self, shares: tf.Tensor) -> tf.Tensor:
        """Exchange shares, see `JoinedGroup.all_to_all`."""
        return self._hvd.alltoall(shares, name=f"shares_{shares.dtype.name}")

    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return the parts of all processes, see `JoinedGroup.concatenate`."""
        return self._hvd.allgather(part, name=f"parts_{part.dtype.name}")

    def gather_bytes(self, message: bytes) -> bytes:
        """Return the messages of all processes."""
        return self._hvd.allgather(_tensor(message), name="gather").numpy().tobytes()

    def broadcast_bytes(self, message: bytes) -> bytes:
        """Return the message of rank 0."""
        length = _tensor(len(message).to_bytes(LENGTH_BYTES, "big"))
        length = self._hvd.broadcast(length, root_rank=0, name="broadcast_length")
        room = _tensor(message.ljust(int.from_bytes(length.numpy().tobytes(), "big")))
        return self._hvd.broadcast(room, root_rank=0, name="broadcast").numpy().tobytes()

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        if self.rank == 0:
            raise error
        # a launcher stops everything when the first rank ends, so wait until rank 0 has told the user
        with contextlib.suppress(Exception):  # fails when rank 0 is gone
            self.barrier()
        raise SystemExit(2) from error


def start_horovod(stall_seconds: int) -> Any:
    """Join Horovod's job; return its module."""
    # By default Horovod waits for a stuck process for ever. Its own checks act after the watchdog, which knows more.
    gloo = os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    settings: dict[str, Any] = {
        "HOROVOD_CYCLE_TIME": 1 if gloo else 5,  # ms; with MPI, the ranks that arrive first keep a core busy
        "HOROVOD_STALL_CHECK_TIME_SECONDS": max(1, stall_seconds // 2),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 2 * max(stall_seconds, round(START_SECONDS)),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": max(2 * stall_seconds, MEETING_SECONDS),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, str(value))
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        raise TrainError(
            f"train.collective: Horovod cannot be imported ({reason}). Run make setup, or take another collective, mpi"
        ) from None
    before = _threads()
    with relayed():
        hvd.init()
    if gloo and not hvd.nccl_built():  # these threads later start NCCL's, which would inherit the scheduling class
        _make_batch_threads(_threads() - before)
    return hvd


def _threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def _make_batch_threads(threads: set[int]) -> None:
    """Put threads into Linux' batch class, where waking threads do not preempt a thread that computes.

    Measured with Gloo: an exchange takes 3.5 instead of 5.5 ms, and Horovod a third of the processor time.
    """
    for thread in threads:
        with contextlib.suppress(OSError):  # the thread ended, or the system forbids it: slower, but not wrong
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


@contextlib.contextmanager
def peer_failures_explained(group: HorovodGroup) -> Iterator[None]:
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


def _tensor(message: bytes) -> tf.Tensor:
    import tensorflow as tf

    return tf.convert_to_tensor(np.frombuffer(message, np.uint8))
