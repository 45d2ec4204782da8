"""What one process of a check job finds where it runs; `ffn doctor` starts it on all nodes and compares.

``python -m ffn.cluster.probe node FOLDER PROCESSES SECONDS`` looks around, ``… horovod`` joins the others, ``… build``
says what Horovod was built with. Each prints its answer in `lines` that `answers` finds again.
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

MARK = "FFN-PROBE"
MARKER = "marker"  # file that the doctor wrote before
POLL_SECONDS = 0.1
MEETING_SECONDS = 300  # for all processes to load TensorFlow from a busy file system
PIECE = 700  # letters in a line: launchers cut longer ones (srun after 1024) and mix the parts of different processes


def look_around(folder: Path, num_processes: int, seconds: float) -> dict[str, Any]:
    """Return what this process sees of its node and of the files of the others.

    Parameters
    ----------
    folder : Path
        Shared folder of the check, made by the doctor.
    num_processes : int
        Processes that will each write a file there.
    seconds : float
        Time for these to become visible here.
    """
    return {
        "host": socket.gethostname(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "packages": {d.name: d.version for d in importlib.metadata.distributions()},
        "memory_mb": _memory_mb(),
        "cores": len(os.sched_getaffinity(0)),
        **_scratch(),
        **_shared(folder, num_processes, seconds),
    }


def join() -> dict[str, Any]:
    """Return this process's place in the job that Horovod makes of all."""
    import horovod.tensorflow as hvd

    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(MEETING_SECONDS))
    hvd.init()
    hosts = hvd.allgather_object(socket.gethostname())
    return {"host": socket.gethostname(), "rank": hvd.rank(), "size": hvd.size(), "hosts": hosts}


def build() -> dict[str, Any]:
    """Return what Horovod can use, or why it cannot be loaded."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as reason:
        return {"error": str(reason)}
    return {"mpi": bool(hvd.mpi_built()), "gloo": bool(hvd.gloo_built())}


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _scratch() -> dict[str, Any]:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
        return {"scratch": folder, "scratch_mb": shutil.disk_usage(folder).free // 2**20}
    except OSError as reason:
        return {"scratch": folder, "scratch_error": str(reason)}


def _shared(folder: Path, num_processes: int, seconds: float) -> dict[str, Any]:
    """Read what the doctor wrote, write and rename a file, and wait for those of the others."""
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
    r"""Return an answer as short lines: mark, name of the answer, number of the piece, of all pieces, piece.

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
    """Return the whole answers in what the processes of a job have printed."""
    pieces: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for name, number, count, piece in re.findall(rf"{MARK} (\w+) (\d+) (\d+) ([\w+/=]+)", output):
        pieces[name, int(count)][int(number)] = piece
    texts = ["".join(found[i] for i in range(count)) for (_, count), found in pieces.items() if len(found) == count]
    return [json.loads(zlib.decompress(base64.b64decode(text))) for text in texts]


def main(arguments: list[str]) -> None:
    """Print what was asked for."""
    what, *rest = arguments
    if what == "node":
        folder, num_processes, seconds = rest
        answer = look_around(Path(folder), int(num_processes), float(seconds))
    else:
        answer = {"horovod": join, "build": build}[what]()
    for line in lines(answer):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
