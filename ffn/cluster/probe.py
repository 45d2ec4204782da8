"""A probe of one node; `ffn doctor` starts it on all nodes and compares the answers.

``python -m ffn.cluster.probe node FOLDER PROCESSES SECONDS`` describes the node, ``… horovod`` joins the other
processes, ``… build`` tells what Horovod was built with; ``… mpi`` and ``… library`` do the same for mpi4py; ``… gpu``
which GPUs TensorFlow sees. Each prints its answer in `lines`, which `answers` parses.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import socket
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

from ffn.machine.gpu_evidence import gather, why_none
from ffn.machine.jax_device import jax_gpus
from ffn.machine.limits import memory_mb, usable_cores

MARK = "FFN-PROBE"
MARKER = "marker"  # file that the doctor writes before it starts probes
POLL_SECONDS = 0.1
MEETING_SECONDS = 300  # until all processes have loaded TensorFlow from a busy file system
PIECE = 700  # characters in a line: launchers cut long lines (srun after 1024) and mix those of different processes


def describe_node(folder: Path, num_processes: int, seconds: float) -> dict[str, Any]:
    """Describe this node, and which files of the other processes are visible on it.

    Parameters
    ----------
    folder : Path
        Shared folder that the doctor made for the check.
    num_processes : int
        Number of processes; each writes a file there.
    seconds : float
        Time for these files to become visible here.
    """
    return {
        "host": socket.gethostname(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "packages": {d.name: d.version for d in importlib.metadata.distributions()},
        "memory_mb": memory_mb(),
        "cores": usable_cores(),
        **_scratch(),
        **_shared(folder, num_processes, seconds),
    }


def join() -> dict[str, Any]:
    """Return this process's place in Horovod's job."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from ffn.machine.rendezvous.relay import relayed

    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(MEETING_SECONDS))
    with relayed():
        hvd.init()
    ranks = hvd.allgather(tf.constant([hvd.rank()])).numpy().tolist()  # shows that the processes reach each other
    return {"host": socket.gethostname(), "rank": hvd.rank(), "size": hvd.size(), "ranks": ranks}


def build() -> dict[str, Any]:
    """Return what Horovod was built with, or why it cannot be imported."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        return {"error": str(reason)}
    return {"mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built())}


def gpu() -> dict[str, Any]:
    """Return how many GPUs TensorFlow and JAX see; if TensorFlow sees none, why, and whether the machine has one."""
    import tensorflow as tf

    counts = {"seen": len(tf.config.list_physical_devices("GPU")), "jax": len(jax_gpus())}
    if counts["seen"]:
        return counts
    evidence = gather()
    return {**counts, "has_card": evidence.has_card, "why": why_none(evidence)}


def join_mpi() -> dict[str, Any]:
    """Return this process's place in MPI's job."""
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)  # shows that the processes reach each other
    return {"host": socket.gethostname(), "rank": MPI.COMM_WORLD.rank, "size": MPI.COMM_WORLD.size, "ranks": ranks}


def library() -> dict[str, Any]:
    """Return the versions of mpi4py and of the MPI that it uses, or why it cannot be imported. Starts no MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as reason:
        return {"error": " ".join(str(reason).split())}
    return {"version": mpi4py.__version__, "mpi": MPI.Get_library_version().partition(",")[0].strip()}


def _scratch() -> dict[str, Any]:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        return {"scratch": folder, "scratch_mb": shutil.disk_usage(folder).free // 2**20}
    except OSError as reason:
        return {"scratch": folder, "scratch_error": str(reason)}


def _shared(folder: Path, num_processes: int, seconds: float) -> dict[str, Any]:
    """Look for the doctor's file, write and rename a file, and wait for those of the other processes."""
    if not (folder / MARKER).exists():
        return {"sees_marker": False}
    name = f"node-{socket.gethostname()}-{os.getpid()}"
    try:
        (folder / f".{name}").write_text(name)
        (folder / f".{name}").rename(folder / name)
    except OSError as reason:
        return {"sees_marker": True, "write_error": reason.strerror}
    start = time.monotonic()
    while True:
        seen = [path.name for path in folder.glob("node-*") if path.read_text() == path.name]
        waited = time.monotonic() - start
        if len(seen) >= num_processes or waited > seconds:
            return {"sees_marker": True, "seen": len(seen), "waited": round(waited, 2)}
        time.sleep(POLL_SECONDS)


def lines(answer: dict[str, Any]) -> list[str]:
    r"""Return an answer as short lines: mark, id of the answer, index of the piece, number of pieces, piece.

    Examples
    --------
    >>> answers("\n".join("[1]<stdout>" + line for line in lines({"rank": 1})))
    [{'rank': 1}]
    """
    text = base64.b64encode(zlib.compress(json.dumps(answer).encode())).decode()
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    name = secrets.token_hex(4)
    return [f"{MARK} {name} {number} {len(pieces)} {piece}" for number, piece in enumerate(pieces)]


def answers(output: str) -> list[dict[str, Any]]:
    """Return the complete answers in the output of a job's processes."""
    pieces: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name, number, count, piece in re.findall(rf"{MARK} (\w+) (\d+) (\d+) ([\w+/=]+)", output):
        pieces[name, int(count)][int(number)] = piece
    texts = ["".join(found[i] for i in range(count)) for (_, count), found in pieces.items() if len(found) == count]
    return [json.loads(zlib.decompress(base64.b64decode(text))) for text in texts]


def main(arguments: list[str]) -> None:
    """Run the probe that the arguments name, and print its answer."""
    what, *rest = arguments
    if what == "node":
        folder, num_processes, seconds = rest
        answer = describe_node(Path(folder), int(num_processes), float(seconds))
    else:
        probes = {"horovod": join, "build": build, "mpi": join_mpi, "library": library, "gpu": gpu}
        answer = probes[what]()
    for line in lines(answer):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
