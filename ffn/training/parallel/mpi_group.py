"""The processes of one training job over plain MPI, for where Horovod cannot be built."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ffn.errors import FfnError, TrainError
from ffn.training.parallel.process_group import JoinedGroup

if TYPE_CHECKING:
    import tensorflow as tf

PATIENCE_SECONDS = 1e-3  # in which a wait keeps its core busy, as MPI does; then it gives the core to others
PAUSE_SECONDS = 1e-4


class MpiGroup(JoinedGroup):
    """The processes of a job of MPI, `here` those on this machine. Tensors pass through the memory of the host."""

    def __init__(self, world: Any, here: Any, stall_seconds: float) -> None:
        super().__init__(world.Get_rank(), world.Get_size(), here.Get_rank(), here.Get_size(), stall_seconds)
        self._world = world
        self.ends_together = False

    def all_to_all(self, shares: tf.Tensor) -> tf.Tensor:
        """Exchange shares, see `JoinedGroup.all_to_all`."""
        return _in_graph(self._all_to_all, shares, shares.shape)

    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return the parts of all processes, see `JoinedGroup.concatenate`."""
        return _in_graph(self._concatenate, part, [None, *part.shape[1:]])

    def gather_bytes(self, message: bytes) -> bytes:
        """Return the messages of all processes."""
        lengths = self._concatenate(np.array([len(message)]))
        received = np.empty(lengths.sum(), np.uint8)
        _finish(self._world.Iallgatherv(np.frombuffer(message, np.uint8), [received, lengths]))
        return received.tobytes()

    def broadcast_bytes(self, message: bytes) -> bytes:
        """Return the message of rank 0."""
        length = np.array([len(message)])
        _finish(self._world.Ibcast(length))
        room = np.frombuffer(bytearray(message.ljust(int(length[0]))), np.uint8)
        _finish(self._world.Ibcast(room))
        return room.tobytes()

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        self.ends_together = True  # MPI's own end waits until rank 0 has told the user
        if self.rank == 0:
            raise error
        raise SystemExit(2) from error

    def _all_to_all(self, shares: np.ndarray) -> np.ndarray:
        received = np.empty_like(shares)
        _finish(self._world.Ialltoall(_bytes(shares), _bytes(received)))
        return received

    def _concatenate(self, part: np.ndarray) -> np.ndarray:
        received = np.empty((self.size * len(part), *part.shape[1:]), part.dtype)
        _finish(self._world.Iallgather(_bytes(part), _bytes(received)))
        return received


@contextlib.contextmanager
def joined(stall_seconds: float) -> Iterator[MpiGroup]:
    """Join the processes of MPI's job for the length of a ``with`` block.

    MPI ends when Python does, which waits for all processes. A process that fails alone ends without it, so that the
    launcher ends the others.
    """
    mpi = _start_mpi()
    world = mpi.COMM_WORLD
    group = MpiGroup(world, world.Split_type(mpi.COMM_TYPE_SHARED), stall_seconds)
    try:
        yield group
        group.ends_together = True
    finally:
        if group.ends_together:
            atexit.register(mpi.Finalize)


def _start_mpi() -> Any:
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as reason:
        what = " ".join(str(reason).split())
        raise TrainError(
            f"train.collective: mpi4py cannot be imported ({what}). Install it ('pip install mpi4py') and load the "
            "site's MPI, or take the collective horovod"
        ) from None
    return MPI


def _in_graph(exchange: Callable[[np.ndarray], np.ndarray], tensor: tf.Tensor, shape: Any) -> tf.Tensor:
    """Call an exchange of arrays inside a graph, which runs such calls in the order of the program."""
    import tensorflow as tf

    received = tf.numpy_function(lambda array: exchange(np.ascontiguousarray(array)), [tensor], tensor.dtype)
    return tf.ensure_shape(received, shape)


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return an array's memory as bytes, because MPI has no type for float16."""
    return array.reshape(-1).view(np.uint8)


def _finish(request: Any) -> None:
    """Wait for an exchange. MPI itself would keep the core busy until the last process has come."""
    since = time.monotonic()
    while not request.Test():
        if time.monotonic() - since > PATIENCE_SECONDS:
            time.sleep(PAUSE_SECONDS)
