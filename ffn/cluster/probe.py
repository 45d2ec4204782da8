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
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffn.machine.gpu import why_no_gpu
from ffn.machine.jax_device import jax_gpus
from ffn.machine.limits import usable_cores

MARK = "FFN-PROBE"  # launchers mix the lines of processes, but cut none of less than 1000 characters
MARKER = "marker"  # file that the doctor writes before it starts probes
POLL_SECONDS = 0.1
MEETING_SECONDS = 300  # until all processes have loaded TensorFlow from a busy file system


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


def join() -> dict[str, Any]:
    """Return this process's place in Horovod's job, or why Horovod cannot be imported."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        return {"error": f"horovod cannot be imported ({reason})"}
    import tensorflow as tf

    from ffn.machine.rendezvous import relayed

    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(MEETING_SECONDS))
    with relayed():
        hvd.init()
    hvd.allgather(tf.constant([hvd.rank()]))  # shows that the processes reach each other
    built = [name for name, is_built in (("mpi", hvd.mpi_built()), ("gloo", hvd.gloo_built())) if is_built]
    return {"rank": hvd.rank(), "size": hvd.size(), "library": f"Horovod with {' and '.join(built)}"}


def join_mpi() -> dict[str, Any]:
    """Return this process's place in MPI's job, or why mpi4py cannot be imported."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as reason:
        return {"error": f"mpi4py cannot be imported ({' '.join(str(reason).split())})"}
    MPI.COMM_WORLD.allgather(0)  # shows that the processes reach each other
    library = f"mpi4py with {MPI.Get_library_version().partition(',')[0].strip()}"
    return {"rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size, "library": library}


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


PROBES: dict[str, Callable[..., dict[str, Any]]] = {"node": node, "horovod": join, "mpi": join_mpi, "gpu": gpu}


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
