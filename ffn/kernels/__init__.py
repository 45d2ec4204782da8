"""The network's training pass in C++, in bfloat16 for CPUs with AMX, else in float32; see README.md in this folder."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from ffn.machine.gpu import gpu_visible
from ffn.machine.limits import cpu_flags

log = logging.getLogger(__name__)

CPU_FLAGS = frozenset("amx_tile amx_bf16 avx512f avx512bw avx512dq avx512vl avx512_bf16".split())
FLOAT32_FLAGS = frozenset({"avx2", "fma"})
MAX_FEATURES = 256  # in float32
# Of a training in float32. With fewer, all inputs of a voxel are often 0. There a direct convolution is exactly 0 and
# passes no gradient; Winograd's is 0 plus rounding and may.
MIN_FEATURES = 8


def library_path() -> Path:
    """Return where `make setup` puts the compiled library: with the environment whose TensorFlow it was built for."""
    return library_of(f"tensorflow-{_tensorflow_version()}")


@functools.cache
def library_of(purpose: str) -> Path:
    """Return the place of a library. Other sources have another, so that none is used that was built from them."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*")):
        if file.suffix in (".cc", ".h"):
            digest.update(file.read_bytes())
    return Path(sys.prefix) / "lib" / f"ffn-kernels-{purpose}-{digest.hexdigest()[:8]}.so"


@functools.cache
def operations(precision: str) -> ModuleType | None:
    """Load TensorFlow's operations ``ffn_forward`` and ``ffn_backward``, None where this machine cannot use them.

    The reason goes to the log once. Bfloat16 needs AMX.
    """
    import tensorflow as tf

    obstacle = _obstacle(precision)
    if obstacle is None:
        try:
            operations = tf.load_op_library(str(library_path()))
        except (tf.errors.NotFoundError, OSError) as error:  # built for another TensorFlow or C++ library
            obstacle = f"{library_path()} does not load ({str(error).splitlines()[0]})"
    # Linux kills a process that uses AMX without having asked.
    if obstacle is None and precision == "bfloat16" and ctypes.CDLL(str(library_path())).ffn_kernels_request_amx():
        obstacle = "Linux does not let this process use AMX"
    ours = "AMX" if precision == "bfloat16" else f"float32, vectors of {vector_lanes()}"
    level = logging.WARNING if obstacle and obstacle == not_built(library_path()) else logging.INFO  # can be mended
    log.log(level, "training kernels: %s", f"TensorFlow's convolutions, because {obstacle}" if obstacle else ours)
    return None if obstacle else operations


def vector_lanes() -> int:
    """Return how many float32 numbers a vector of this CPU holds: 16 with AVX-512, 8 with AVX2, 4 on any other."""
    flags = cpu_flags()
    if "avx512f" in flags:
        return 16
    return 8 if {"avx2", "fma"} <= flags else 4


def not_built(library: Path) -> str | None:
    """Say that a library is missing, if it is."""
    return None if library.exists() else f"{library} is missing (make setup builds it, and ffn run)"


def unfit(precision: str, features: int) -> str | None:
    """Say why the operations do not compute a network with so many features; None if they do."""
    if precision == "bfloat16" or MIN_FEATURES <= features <= MAX_FEATURES:
        return None
    return f"the network has {features} features, and the kernels compute {MIN_FEATURES} to {MAX_FEATURES}"


def _obstacle(precision: str) -> str | None:
    """Return why this machine cannot use the library, or None."""
    missing = (CPU_FLAGS if precision == "bfloat16" else FLOAT32_FLAGS) - cpu_flags()
    if missing:
        return f"the CPU has no {', '.join(sorted(missing))}"
    return "TensorFlow sees a GPU" if gpu_visible() else not_built(library_path())


def _tensorflow_version() -> str:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "missing"
