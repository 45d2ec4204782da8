"""Whether there is a GPU, and which one this process takes among processes that know nothing of each other."""

from __future__ import annotations

import functools
import hashlib
import os
import socket

from ffn.machine.schedulers import current_job_id

_HELD: list[socket.socket] = []  # locks of this process; the kernel frees them when it ends, however it ends


def gpu_visible() -> bool:
    """Return whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


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
    Jobs of a scheduler see their own GPUs alone, often numbered from 0 in each of them, so every job has locks of its
    own. A lock is a socket's name in Linux' abstract namespace, which leaves no file behind.
    """
    job = current_job_id() or ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == num_gpus else [str(number) for number in range(num_gpus)]
    for number, name in enumerate(names):
        digest = hashlib.sha256(f"{os.getuid()} {job} {name}".encode()).hexdigest()  # the name may have 107 bytes
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0ffn-gpu-{digest}")
        except OSError:
            lock.close()
            continue
        _HELD.append(lock)
        return number
    return 0
