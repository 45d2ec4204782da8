"""Cores, threads and GPU of a training process, chosen before TensorFlow or JAX computes anything."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from ffn.errors import ConfigError
from ffn.machine.jax_device import PREALLOCATE
from ffn.machine.limits import cores_here, quota, threads_here
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup

log = logging.getLogger(__name__)

Cores = frozenset[int]

DETERMINISTIC = "xla_gpu_deterministic_ops"  # flag of XLA


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
