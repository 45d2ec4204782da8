"""A GPU for each of the processes of a machine that know nothing of each other."""

from __future__ import annotations

import fcntl
import functools
import os
import tempfile
from pathlib import Path
from typing import IO

_HELD: list[IO[str]] = []  # locks of this process; the kernel frees them when it ends, however it ends


@functools.cache
def take_gpu(num_gpus: int) -> int:
    """Return the number of a GPU that no other process of this user has taken; it is this one's until it ends.

    Parameters
    ----------
    num_gpus : int
        GPUs that this process sees, at least one.

    Returns
    -------
    int
        Number among those that are seen; 0 if all are taken, and then it is shared.

    Notes
    -----
    The locks are in the temporary folder, a local disk. Jobs of a scheduler see their own GPUs alone.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == num_gpus else [str(number) for number in range(num_gpus)]
    for number, name in enumerate(names):
        place = Path(tempfile.gettempdir()) / f"ffn-gpu-{os.getuid()}-{name.replace('/', '-')}.lock"
        lock = place.open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            continue
        _HELD.append(lock)
        return number
    return 0
