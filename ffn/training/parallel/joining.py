"""Joins the processes of a training job, over Horovod or over plain MPI; gives each its cores, threads and GPU."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ffn.errors import ConfigError, FfnError, TrainError
from ffn.machine.gpu import PREALLOCATE, load_tensorflow
from ffn.machine.limits import cores_here, quota, threads_here
from ffn.machine.schedulers import LaunchedRank, launched_rank
from ffn.training.config import Collective, TrainConfig
from ffn.training.parallel.process_group import JoinedGroup, ProcessGroup

if TYPE_CHECKING:
    import tensorflow as tf

log = logging.getLogger(__name__)

MEETING_SECONDS = 600  # minimum for all processes to copy and load TensorFlow; our choice
PATIENCE_SECONDS = 1e-3  # in which a wait keeps its core busy, as MPI does; then it gives the core to others
PAUSE_SECONDS = 1e-4
DETERMINISTIC = "xla_gpu_deterministic_ops"  # flag of XLA

Cores = frozenset[int]


class HorovodGroup(JoinedGroup):
    """The processes of a job of Horovod."""

    def __init__(self, hvd: Any, stall_seconds: float) -> None:
        super().__init__(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), stall_seconds)
        self._hvd = hvd

    def total(self, rows: tf.Tensor) -> tf.Tensor:
        """Sum the rows of all processes pairwise, see `ProcessGroup.total`.

        An allreduce adds in an order of its own, which does not matter for one row of each of two processes.
        """
        if self.size == 2 and rows.shape[0] == 1 and rows.dtype.name == "float32":
            return self.allreduce(rows[0])
        return super().total(rows)

    @property
    def library(self) -> str:
        """Horovod, and what it runs on."""
        return f"Horovod with {'MPI' if self._hvd.mpi_enabled() else 'Gloo'}"

    def allreduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum vectors by Horovod's call, see `JoinedGroup.allreduce`."""
        return self._hvd.allreduce(vector, op=self._hvd.Sum, name="total")

    def all_to_all(self, shares: tf.Tensor) -> tf.Tensor:
        """Exchange shares, see `JoinedGroup.all_to_all`."""
        return self._hvd.alltoall(shares, name=f"shares_{shares.dtype.name}")

    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return the parts of all processes, see `JoinedGroup.concatenate`."""
        return self._hvd.allgather(part, name=f"parts_{part.dtype.name}")

    def gather_bytes(self, message: bytes) -> bytes:
        """Return the messages of all processes."""
        return self._hvd.allgather(np.frombuffer(message, np.uint8), name="gather").numpy().tobytes()

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
    gloo = os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    settings: dict[str, Any] = {
        "HOROVOD_CYCLE_TIME": 1 if gloo else 5,  # ms; with MPI, the ranks that arrive first keep a core busy
        "HOROVOD_STALL_CHECK_DISABLE": 1,  # the watchdog knows more
        "HOROVOD_GLOO_TIMEOUT_SECONDS": max(2 * stall_seconds, MEETING_SECONDS),
    }
    for name, value in settings.items():
        os.environ.setdefault(name, str(value))
    with _imported("Horovod", "Run make setup"):
        load_tensorflow()
        import horovod.tensorflow as hvd
    # Its threads inherit Linux' batch class, in which waking threads do not preempt those that compute. Measured with
    # Gloo: an exchange takes 3.5 instead of 5.5 ms, and Horovod a third of the processor time. NCCL's would inherit it.
    usual = os.sched_getscheduler(0)
    _schedule_as(os.SCHED_BATCH if gloo and not hvd.nccl_built() else usual)
    hvd.init()
    _schedule_as(usual)
    return hvd


def _schedule_as(policy: int) -> None:
    """Change the scheduling class of this thread."""
    with contextlib.suppress(OSError):  # the system forbids it: slower, but not wrong
        os.sched_setscheduler(0, policy, os.sched_param(0))


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


class MpiGroup(JoinedGroup):
    """The processes of a job of MPI, `here` those on this machine. Tensors pass through the memory of the host."""

    def __init__(self, world: Any, here: Any, stall_seconds: float) -> None:
        super().__init__(world.Get_rank(), world.Get_size(), here.Get_rank(), here.Get_size(), stall_seconds)
        self._world = world
        self.ends_together = False

    @property
    def library(self) -> str:
        """The MPI that mpi4py uses."""
        return f"mpi4py with {_start_mpi().Get_library_version().partition(',')[0].strip()}"

    def allreduce(self, vector: tf.Tensor) -> tf.Tensor:
        """Sum vectors by MPI's call, see `JoinedGroup.allreduce`."""
        return _in_graph(self._world.Iallreduce, vector, kind=np.float32)

    def all_to_all(self, shares: tf.Tensor) -> tf.Tensor:
        """Exchange shares, see `JoinedGroup.all_to_all`."""
        return _in_graph(self._world.Ialltoall, shares)

    def concatenate(self, part: tf.Tensor) -> tf.Tensor:
        """Return the parts of all processes, see `JoinedGroup.concatenate`."""
        return _in_graph(self._world.Iallgather, part, self.size)

    def gather_bytes(self, message: bytes) -> bytes:
        """Return the messages of all processes."""
        lengths = _received(self._world.Iallgather, np.array([len(message)]), self.size)
        received = np.empty(lengths.sum(), np.uint8)
        _finish(self._world.Iallgatherv(np.frombuffer(message, np.uint8), [received, lengths]))
        return received.tobytes()

    def fail(self, error: FfnError) -> NoReturn:
        """End all processes; rank 0 raises `error`. All processes call this together."""
        self.ends_together = True  # MPI's own end waits until rank 0 has told the user
        if self.rank == 0:
            raise error
        raise SystemExit(2) from error


@contextlib.contextmanager
def joined_by_mpi(stall_seconds: float) -> Iterator[MpiGroup]:
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
    with _imported("mpi4py", "Install it ('pip install mpi4py') and load the site's MPI"):
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI
    return MPI


@contextlib.contextmanager
def _imported(library: str, remedy: str) -> Iterator[None]:
    """Say what to do without a library."""
    try:
        yield
    except (ImportError, RuntimeError) as reason:
        found = f"train.collective: {library} cannot be imported ({' '.join(str(reason).split())})"
        raise TrainError(f"{found}. {remedy}, take the other collective, or train with virtual_workers") from None


def _in_graph(exchange: Callable[..., Any], tensor: tf.Tensor, copies: int = 1, kind: type = np.uint8) -> tf.Tensor:
    """Call an exchange of MPI inside a graph, which runs such calls in the order of the program; see `_received`."""
    import tensorflow as tf

    received = tf.numpy_function(lambda sent: _received(exchange, sent, copies, kind), [tensor], tensor.dtype)
    return tf.ensure_shape(received, [None, *tensor.shape[1:]] if copies > 1 else tensor.shape)


def _received(exchange: Callable[..., Any], sent: np.ndarray, copies: int, kind: type = np.uint8) -> np.ndarray:
    """Return what an exchange brings, `copies` as long; it sees bytes, as MPI has no type for float16, or a `kind`."""
    received = np.empty((copies * len(sent), *sent.shape[1:]), sent.dtype)
    _finish(exchange(np.ascontiguousarray(sent).reshape(-1).view(kind), received.reshape(-1).view(kind)))
    return received


def _finish(request: Any) -> None:
    """Wait for an exchange. MPI itself would keep the core busy until the last process has come."""
    since = time.monotonic()
    while not request.Test():
        if time.monotonic() - since > PATIENCE_SECONDS:
            time.sleep(PAUSE_SECONDS)


@contextlib.contextmanager
def process_group(num_workers: int, stall_seconds: int, collective: Collective = "horovod") -> Iterator[ProcessGroup]:
    """Join the processes of this job for the length of a ``with`` block; see `TrainConfig` for the parameters."""
    launch = launched_rank()
    if num_workers == 1 and launch in (None, LaunchedRank(0, 1)):
        yield ProcessGroup()
        return
    with joined(collective, stall_seconds) as group:
        started = (launch.size or launch.rank + 1) if launch else 1
        if group.size == 1 < started:  # they would all write the same files
            raise TrainError(
                f"train.num_workers: the launcher started at least {started} processes, but {group.library} sees "
                "only one. Take the launcher of its MPI ('ffn doctor' shows it), or 'ffn launch' for Horovod"
            )
        if group.size != num_workers:
            group.fail(
                TrainError(
                    f"train.num_workers: found a job of size {group.size}, expected {num_workers} processes. Launch "
                    f"with 'ffn launch -n {num_workers} -- ffn train …', or as {num_workers} tasks of one MPI job"
                )
            )
        yield group


@contextlib.contextmanager
def joined(collective: Collective, stall_seconds: int) -> Iterator[JoinedGroup]:
    """Join the processes by the library that the configuration names."""
    if collective == "mpi":
        with joined_by_mpi(stall_seconds) as over_mpi:
            yield over_mpi
        return
    group = HorovodGroup(start_horovod(stall_seconds), stall_seconds)
    with peer_failures_explained(group):
        yield group


def configure_libraries(group: ProcessGroup, config: TrainConfig, rng_seed: int) -> None:
    """Give this process its cores and its GPU, and make every operation deterministic.

    No process of the group may have computed anything yet, not even an average. An operation uses
    ``intra_op_threads``; if that is 0, ``OMP_NUM_THREADS``; else one thread for each core of the process.
    ``KMP_BLOCKTIME`` affects only builds of TensorFlow with OpenMP: it keeps waiting threads from holding the cores
    (Dong et al. 2019: holding them is more than ten times slower at batch size 1).

    JAX takes its settings from the environment when it starts, which is later, if at all. It needs no TensorFlow.
    """
    cores = assign_cores(group)
    usable = max(1, int(min(len(cores), cores_here(), quota() / group.local_size)))
    threads = config.intra_op_threads or threads_here(usable)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    # which takes five seconds to load; what processes exchange are its tensors
    needs_tensorflow = config.engine != "jax" or group.size > 1 or config.compression != "none"
    if needs_tensorflow and importlib.util.find_spec("tensorflow"):
        _configure_tensorflow(group, config, rng_seed, threads)
    elif config.engine != "jax":
        raise ConfigError(f"train.engine: {config.engine} needs TensorFlow, which is not installed. Give jax")
    os.environ.setdefault("PJRT_NPROC", str(threads))
    os.environ.setdefault(PREALLOCATE, "false")
    if DETERMINISTIC not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} --{DETERMINISTIC}=true".strip()
    log.debug("rank %d: %d threads on cores %s", group.rank, threads, sorted(cores))


def _configure_tensorflow(group: ProcessGroup, config: TrainConfig, rng_seed: int, threads: int) -> None:
    """Let TensorFlow see the GPU of this process only, or none if JAX trains."""
    load_tensorflow()
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(rng_seed % 2**32)
    tf.config.experimental.enable_op_determinism()
    # TensorFlow 2.21's remapper fails on residual modules with a message on stderr; the speed is the same without it
    tf.config.optimizer.set_experimental_options({"remapping": False})
    with contextlib.suppress(RuntimeError):  # TensorFlow already runs in this process, so its threads are fixed
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_threads)
    gpus = tf.config.list_physical_devices("GPU")
    mine = gpus[group.local_rank % len(gpus) :][:1] if gpus and config.engine != "jax" else []
    with contextlib.suppress(RuntimeError):  # as above, so its devices are fixed
        tf.config.set_visible_devices(mine, "GPU")
        for gpu in mine:  # else the first rank on a GPU would take all of its memory
            tf.config.experimental.set_memory_growth(gpu, True)


def assign_cores(group: ProcessGroup) -> Cores:
    """Return the cores of this process, and bind it to them.

    Cores that the launcher gave to this process alone stay as they are. Cores that it gave to several processes of the
    job are divided between them.
    """
    mine = frozenset(os.sched_getaffinity(0))
    if group.local_size == 1:
        return mine
    masks = _masks_of_local_ranks() if group.size > 1 else {}  # else some are bound before others look
    if len(masks) != group.local_size:  # the others are hidden, in separate containers for example
        log.debug("rank %d: sees %d of %d processes here", group.rank, len(masks), group.local_size)
        bound = group.local_size * len(mine) <= (os.cpu_count() or 1)
        return mine if bound else share_of_cores(dict.fromkeys(range(group.local_size), mine), group.local_rank)
    cores = share_of_cores(masks, os.getpid())
    if cores != mine:
        os.sched_setaffinity(0, cores)  # binds this thread and all threads that it starts from now on
    return cores


def share_of_cores(masks: Mapping[int, Cores], process: int) -> Cores:
    """Divide cores among the processes that were given the same ones; return the share of `process`.

    `masks` are the cores that each process may use. Those of the same socket and physical core stay together. A process
    keeps its whole mask if no other one has the same, or if there are fewer cores than processes.
    """
    mine = masks[process]
    sharers = sorted(other for other, mask in masks.items() if mask == mine)
    if len(sharers) == 1 or len(mine) < len(sharers):
        return mine
    cores = sorted(mine, key=_location_in_machine)
    index = sharers.index(process)
    return frozenset(cores[index * len(cores) // len(sharers) : (index + 1) * len(cores) // len(sharers)])


def _masks_of_local_ranks() -> dict[int, Cores]:
    """Cores that the launcher gave to the processes of this job on this machine, by process id.

    Processes of one job have the same command line. A process that is already bound to its share still has Horovod's
    thread from before, so the cores of all its threads together are those that the launcher gave it.
    """
    import psutil

    command = psutil.Process().cmdline()
    masks = {}
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == command:
            with contextlib.suppress(OSError, psutil.Error):  # it has ended
                threads = [thread.id for thread in process.threads()]
                masks[process.pid] = frozenset().union(*map(os.sched_getaffinity, threads))
    return masks


def _location_in_machine(core: int) -> tuple[int, int, int]:
    """Socket, physical core and number of a core."""
    folder = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text()), core
    except OSError:
        return 0, core, core
