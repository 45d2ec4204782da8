"""A probe of one node; `ffn doctor` starts it on all nodes and compares the answers.

``python -m ffn.cluster.probe node FOLDER PROCESSES SECONDS`` describes the node, ``… horovod`` and ``… mpi`` join the
other processes, ``… gpu`` counts the GPUs that TensorFlow and JAX see. Each prints its answer in one line, which
`answers` finds.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable
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
MARKER = "marker"  # file that the doctor writes before it starts probes
POLL_SECONDS = 0.1
MEETING_SECONDS = 300  # until all processes have loaded TensorFlow from a busy file system
ROUNDS = 20  # of exchanges to time; our choice


def node(folder: str, num_processes: str, seconds: str) -> dict[str, Any]:
    """Describe this node, and which files of the other processes appear in a folder within some seconds."""
    packages = sorted(f"{found.name} {found.version}" for found in importlib.metadata.distributions())
    python = [sys.version, sys.executable, *packages]
    return {
        "host": socket.gethostname(),
        "python": hashlib.sha256(repr(python).encode()).hexdigest()[:12],
        "cores": usable_cores(),
        **_shared(Path(folder), int(num_processes), float(seconds)),
    }


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


def gpu() -> dict[str, Any]:
    """Return how many GPUs TensorFlow and JAX see, and why TensorFlow sees none."""
    import tensorflow as tf

    seen = len(tf.config.list_physical_devices("GPU"))
    return {"tensorflow": seen, "jax": len(jax_gpus()), "why": "" if seen else why_no_gpu()}


def _shared(folder: Path, num_processes: int, seconds: float) -> dict[str, Any]:
    """Look for the doctor's file, write one, and wait until those of the other processes are whole."""
    if not (folder / MARKER).exists():
        return {"sees_marker": False}
    name = f"node-{socket.gethostname()}-{os.getpid()}"
    try:
        (folder / name).write_text(name)
    except OSError as reason:
        return {"sees_marker": True, "write_error": reason.strerror}
    deadline = time.monotonic() + seconds
    while True:
        seen = [path.name for path in folder.glob("node-*") if path.read_text() == path.name]
        if len(seen) >= num_processes or time.monotonic() > deadline:
            return {"sees_marker": True, "seen": len(seen)}
        time.sleep(POLL_SECONDS)


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "node": node,
    "horovod": lambda: join("horovod"),
    "mpi": lambda: join("mpi"),
    "gpu": gpu,
}


def answers(output: str) -> list[dict[str, Any]]:
    r"""Return the answers in the output of a job's processes.

    Examples
    --------
    >>> answers('noise\n[1]<stdout>FFN-PROBE {"rank": 1}')
    [{'rank': 1}]
    """
    decoder = json.JSONDecoder()
    return [decoder.raw_decode(output, found.end())[0] for found in re.finditer(rf"{MARK} (?=\{{)", output)]


def main(arguments: list[str]) -> None:
    """Run the probe that the arguments name, and print its answer."""
    name, *rest = arguments
    os.write(1, f"{MARK} {json.dumps(PROBES[name](*rest))}\n".encode())  # in one piece


if __name__ == "__main__":
    main(sys.argv[1:])
