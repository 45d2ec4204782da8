"""The processes of one training job: Horovod behind a handful of calls, or a single process without it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from ffn.errors import FfnError, TrainError

if TYPE_CHECKING:
    import tensorflow as tf

T = TypeVar("T")

log = logging.getLogger(__name__)

# Horovod's own default is to wait for ever for a process that is stuck or gone.
STALL_SETTINGS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "60", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120"}
# Set by horovodrun, Open MPI, PMI (MPICH, Slurm), PMIx (Slurm), ALPS (aprun).
LAUNCHER_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "ALPS_APP_PE")


class ProcessGroup:
    """All processes of the job; this class is the group of one, which needs no Horovod.

    Attributes
    ----------
    rank, size : int
        This process, and how many there are.
    local_rank, local_size : int
        The same on this machine.
    """

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1

    def average(self, vector: tf.Tensor) -> tf.Tensor:
        """Average a float32 vector over all processes; usable inside a graph, bit-identical everywhere."""
        return vector

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank."""
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
        """Run `action` everywhere; an `FfnError` of any process ends all of them, and rank 0 tells it.

        Raises
        ------
        FfnError
            On rank 0, the error of the lowest rank that failed. The other ranks exit with 2.
        """
        outcome, failure = _attempt(action)
        failures = [error for error in self.gather(failure) if error is not None]
        if failures:
            self.fail(failures[0])
        return outcome  # type: ignore[return-value]  # None only where the action returned it

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes, which all call this, with the error that rank 0 raises."""
        raise error


class HorovodGroup(ProcessGroup):
    """The processes that a launcher started."""

    def __init__(self, hvd: Any) -> None:
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        self.local_rank, self.local_size = hvd.local_rank(), hvd.local_size()

    def average(self, vector: tf.Tensor) -> tf.Tensor:
        """Average a float32 vector over all processes; usable inside a graph, bit-identical everywhere."""
        return self._hvd.allreduce(vector, op=self._hvd.Average, name="average")

    def gather(self, item: T) -> list[T]:
        """Return the items of all processes in order of rank."""
        return self._hvd.allgather_object(item)

    def broadcast(self, item: T) -> T:
        """Return the item of rank 0."""
        return self._hvd.broadcast_object(item, root_rank=0)

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes, which all call this, with the error that rank 0 raises."""
        if self.rank == 0:
            raise error
        # a launcher stops everything when the first rank ends: let rank 0 tell the user before
        with contextlib.suppress(Exception):  # fails when rank 0 is gone
            self.barrier()
        raise SystemExit(2)


@contextlib.contextmanager
def process_group(num_workers: int) -> Iterator[ProcessGroup]:
    """Join the processes of this job for the length of a ``with`` block.

    Parameters
    ----------
    num_workers : int
        Processes that the configuration asks for.

    Raises
    ------
    TrainError
        If another number of processes started, or one of them ended early.
    """
    if num_workers == 1 and not any(name in os.environ for name in LAUNCHER_VARIABLES):
        yield ProcessGroup()
        return
    group = HorovodGroup(_start_horovod())
    if group.size != num_workers:
        group.fail(
            TrainError(
                f"train.num_workers: {num_workers} processes asked for, {group.size} started. "
                f"Launch with 'horovodrun -np {num_workers} ffn train …', or as so many tasks of one MPI job"
            )
        )
    with _peer_failures_explained(group):
        yield group


def _attempt(action: Callable[[], T]) -> tuple[T | None, FfnError | None]:
    try:
        return action(), None
    except FfnError as error:
        return None, error


def _start_horovod() -> Any:
    for name, value in STALL_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        raise TrainError(f"train.num_workers: Horovod cannot be loaded ({reason}). Run make setup") from None
    hvd.init()
    return hvd


@contextlib.contextmanager
def _peer_failures_explained(group: HorovodGroup) -> Iterator[None]:
    """Turn what Horovod raises when another process is gone into one line."""
    import tensorflow as tf
    from horovod.common.exceptions import HorovodInternalError

    try:
        yield
    except (HorovodInternalError, tf.errors.UnknownError, tf.errors.AbortedError) as reason:
        log.debug("rank %d: %s", group.rank, reason)
        raise TrainError(f"rank {group.rank}: stopped because another process of the job ended or hangs") from None
