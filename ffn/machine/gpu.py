"""Find GPUs, and share them among processes that do not know each other."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import subprocess
from importlib import metadata

from ffn.machine.schedulers import current_job_id

SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
SMI_SECONDS = 20  # a driver that is loaded anew for each call takes some seconds

_HELD: list[socket.socket] = []  # locks of this process; the kernel releases them when it ends


def gpu_visible() -> bool:
    """Return whether TensorFlow sees a GPU. The package for CPUs alone is not imported, which takes seconds."""
    if _is_installed("tensorflow-cpu") and not _is_installed("tensorflow"):
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


def cards() -> list[str]:
    """Return the names of the GPUs that the driver of NVIDIA knows."""
    try:
        done = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def why_no_gpu() -> str:
    """Say why TensorFlow sees no GPU, as far as the driver and TensorFlow's build tell."""
    import tensorflow as tf

    found = cards()
    if not found:
        return "nvidia-smi lists no GPU. A container needs docker --gpus all or apptainer --nv to see one"
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        return f"{found[0]} is here, but TensorFlow is built without CUDA. Run make setup GPU=1"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"{found[0]} is here, and CUDA_VISIBLE_DEVICES is {visible!r}. See what TensorFlow says when it starts"


@functools.cache
def take_gpu(num_gpus: int) -> int:
    """Reserve one of the GPUs that this process sees, until it ends, and return its index; 0, shared, if all are taken.

    A scheduler shows each job its own GPUs, often numbered from 0, so the locks are per job. A lock is the name of a
    socket in the abstract namespace of Linux, which leaves no file behind.
    """
    job = current_job_id() or ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = visible if len(visible) == num_gpus else [str(number) for number in range(num_gpus)]
    for number, name in enumerate(names):
        digest = hashlib.sha256(f"{os.getuid()} {job} {name}".encode()).hexdigest()  # the name is limited to 107 bytes
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0ffn-gpu-{digest}")
        except OSError:
            lock.close()
            continue
        _HELD.append(lock)
        return number
    return 0


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False
