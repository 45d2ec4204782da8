"""Cores, threads and GPU of a training process, settled before TensorFlow computes anything."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ffn.machine.threads import threads_here
from ffn.training.config import TrainConfig
from ffn.training.parallel.process_group import ProcessGroup

log = logging.getLogger(__name__)

Cores = frozenset[int]


def configure_tensorflow(group: ProcessGroup, config: TrainConfig, rng_seed: int) -> None:
    """Give this process its cores and its GPU, and make every operation deterministic.

    Parameters
    ----------
    group : ProcessGroup
        The processes of the job, none of which has computed anything yet, be it an average.
    config : TrainConfig
        Threads.
    rng_seed : int
        Seed of the run.

    Notes
    -----
    An operation has ``intra_op_threads``; if that is 0, ``OMP_NUM_THREADS``; if that is not set, as many as the
    process has cores. ``KMP_BLOCKTIME`` concerns builds of TensorFlow with OpenMP only: their threads shall not keep
    the cores while they wait (Dong et al. 2019: more than ten times slower at batch size 1 if they do).
    """
    import keras
    import tensorflow as tf

    cores = place(group, config.pin_threads)
    threads = config.intra_op_threads or threads_here(len(cores))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    keras.utils.set_random_seed(rng_seed % 2**32)
    tf.config.experimental.enable_op_determinism()
    # TensorFlow 2.21's remapper fails on residual modules, and says so on stderr; without it the speed is the same
    tf.config.optimizer.set_experimental_options({"remapping": False})
    with contextlib.suppress(RuntimeError):  # TensorFlow already runs in this process: its devices are what they are
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_threads)
        gpus = tf.config.list_physical_devices("GPU")
        tf.config.set_visible_devices(gpus[group.local_rank % len(gpus) :][:1] if gpus else [], "GPU")
    log.debug("rank %d: %d threads on cores %s", group.rank, threads, sorted(cores))


def place(group: ProcessGroup, pin_threads: bool) -> Cores:
    """Return the cores of this process; with `pin_threads`, keep it on them.

    What a launcher has given to this process alone stays as it is; what it left to several processes of the job is
    divided between them.
    """
    mine = frozenset(os.sched_getaffinity(0))
    if group.local_size == 1:
        return mine
    masks = _masks_of_neighbours()
    if len(masks) != group.local_size:  # hidden from us, in containers of their own for example
        log.debug("rank %d: sees %d of %d processes here", group.rank, len(masks), group.local_size)
        bound = group.local_size * len(mine) <= (os.cpu_count() or 1)
        return mine if bound else share_of_cores(dict.fromkeys(range(group.local_size), mine), group.local_rank)
    cores = share_of_cores(masks, os.getpid())
    if pin_threads and cores != mine:
        os.sched_setaffinity(0, cores)  # of this thread, and of all that it starts from now on
    return cores


def share_of_cores(masks: Mapping[int, Cores], process: int, key: Callable[[int], Any] | None = None) -> Cores:
    """Divide cores among those processes that were given the same ones.

    Parameters
    ----------
    masks : mapping of int to frozenset of int
        Cores that each process may use.
    process : int
        Whose share to return.
    key : callable, optional
        Sorts cores so that those stand side by side that share a socket and a physical core.

    Returns
    -------
    frozenset of int
        All that it was given where it shares with none, or where there is not one core for each.
    """
    mine = masks[process]
    sharers = sorted(other for other, mask in masks.items() if mask == mine)
    if len(sharers) == 1 or len(mine) < len(sharers):
        return mine
    cores = sorted(mine, key=key or _place_in_machine)
    index = sharers.index(process)
    return frozenset(cores[index * len(cores) // len(sharers) : (index + 1) * len(cores) // len(sharers)])


def _masks_of_neighbours() -> dict[int, Cores]:
    """Cores that the launcher gave to the processes of this job on this machine, by process id.

    They have the same command line. One that has moved to its share already still has the thread of Horovod that it
    started before: the cores of all its threads are those it was given.
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


def _place_in_machine(core: int) -> tuple[int, int, int]:
    """Socket, physical core, number."""
    folder = Path(f"/sys/devices/system/cpu/cpu{core}/topology")
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text()), core
    except OSError:
        return 0, core, core
