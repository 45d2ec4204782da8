"""The network's training pass in C++, for CPUs with AMX; see README.md in this folder."""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from ffn.machine.cpu import cpu_flags
from ffn.machine.gpu import gpu_visible

log = logging.getLogger(__name__)

CPU_FLAGS = frozenset("amx_tile amx_bf16 avx512f avx512bw avx512dq avx512vl avx512_bf16".split())


def library_path() -> Path:
    """Return where `make setup` puts the compiled library: with the environment whose TensorFlow it was built for."""
    return Path(sys.prefix) / "lib" / f"ffn-kernels-tensorflow-{_tensorflow_version()}.so"


@functools.cache
def operations() -> ModuleType | None:
    """Load TensorFlow's operations ``ffn_forward`` and ``ffn_backward``.

    Returns
    -------
    module or None
        None where this machine cannot use them; the reason goes to the log once.
    """
    import tensorflow as tf

    obstacle = _obstacle()
    if obstacle is None:
        try:
            operations = tf.load_op_library(str(library_path()))
        except (tf.errors.NotFoundError, OSError) as error:  # built for another TensorFlow or C++ library
            obstacle = f"{library_path()} does not load ({str(error).splitlines()[0]})"
    if obstacle is None and ctypes.CDLL(str(library_path())).ffn_kernels_request_amx():
        obstacle = "Linux does not let this process use AMX"
    log.info("training kernels: %s", f"TensorFlow's convolutions, because {obstacle}" if obstacle else "AMX")
    return None if obstacle else operations


def processor_seconds() -> dict[str, float]:
    """Return the processor time that all threads have spent in the operations so far, by part of the work."""
    parts = ["forward", "data gradients", "weight gradients", "rest"]
    seconds = (ctypes.c_double * len(parts))()
    if operations() is not None:  # which TensorFlow has to load first, or it would find no operations in it
        ctypes.CDLL(str(library_path())).ffn_kernels_seconds(seconds)
    return dict(zip(parts, seconds, strict=True))


def _obstacle() -> str | None:
    """Say what keeps this machine from using the library."""
    missing = CPU_FLAGS - cpu_flags()
    if missing:
        return f"the CPU has no {', '.join(sorted(missing))}"
    if not library_path().exists():
        return f"{library_path()} is missing (make setup builds it)"
    return "TensorFlow sees a GPU" if gpu_visible() else None


def _tensorflow_version() -> str:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "missing"
