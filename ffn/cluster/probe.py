"""A probe of one process of a job; `ffn doctor` starts it by the launcher and compares the answers.

``python -m ffn.cluster.probe COLLECTIVE FOLDER`` describes its node, then joins the other processes. It prints both
answers, each in one line, which `answers` finds.
"""

from __future__ import annotations

import json
import os
import re
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from ffn.config import ModelConfig
from ffn.errors import TrainError
from ffn.machine.gpu import why_no_gpu
from ffn.machine.jax_device import jax_gpus
from ffn.machine.limits import usable_cores
from ffn.model.network import num_weights
from ffn.training.config import Collective
from ffn.training.parallel.joining import joined
from ffn.training.parallel.process_group import JoinedGroup

MARK = "FFN-PROBE"  # launchers mix the lines of processes, but cut none of less than 1000 characters
MEETING_SECONDS = 300  # until all processes have loaded TensorFlow from a busy file system
ROUNDS = 20  # of exchanges to time; our choice


def node(folder: str) -> dict[str, Any]:
    """Describe what this process has of its node: cores, GPUs, and whether it may write to a folder."""
    import tensorflow as tf

    seen, host = len(tf.config.list_physical_devices("GPU")), socket.gethostname()
    gpus = {"tensorflow": seen, "jax": len(jax_gpus()), "why": "" if seen else why_no_gpu()}
    found: dict[str, Any] = {"host": host, "cores": usable_cores(), **gpus}
    try:
        Path(folder, f"{host}-{os.getpid()}").touch()
    except OSError as reason:
        found["refused"] = reason.strerror
    return found


def join(collective: Collective) -> dict[str, Any]:
    """Return this process's place in the job and the times of exchanges, or why the library cannot be imported."""
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(MEETING_SECONDS))
    try:
        with joined(collective, MEETING_SECONDS) as group:
            return {"rank": group.rank, "size": group.size, "library": group.library, **_exchange_ms(group)}
    except TrainError as reason:
        return {"error": str(reason)}


def _exchange_ms(group: JoinedGroup) -> dict[str, float]:
    """Add gradients of the default network in both ways, in turn; return the median times."""
    import tensorflow as tf

    gradient = tf.ones(num_weights(ModelConfig()))
    ways = {"exact_ms": lambda: group.total(gradient[None]), "allreduce_ms": lambda: group.allreduce(gradient)}
    graphs = {name: tf.function(way, autograph=False) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS + 1):
        for name, graph in graphs.items():
            started = time.perf_counter()
            graph()
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: round(statistics.median(each[1:]), 2) for name, each in times.items()}  # the first one compiles


def answers(output: str) -> list[dict[str, Any]]:
    r"""Return the answers in the output of a job's processes.

    Examples
    --------
    >>> answers('loading\n0: FFN-PROBE {"rank": 0}\n')
    [{'rank': 0}]
    """
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(output, found.end())[0] for found in re.finditer(rf"{MARK} (?=\{{)", output)]


def tell(answer: dict[str, Any]) -> None:
    """Print an answer, in one piece."""
    os.write(1, f"{MARK} {json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    tell(node(sys.argv[2]))
    tell(join("mpi" if sys.argv[1] == "mpi" else "horovod"))
