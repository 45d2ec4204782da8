"""Find GPUs, share them among processes that do not know each other, and choose the device of JAX."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.util
import logging
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.errors import ConfigError
from ffn.machine.schedulers import current_job_id

if TYPE_CHECKING:
    import jax

SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
SMI_SECONDS = 20  # a driver that is loaded anew for each call takes some seconds

_HELD: list[socket.socket] = []  # locks of this process; the kernel releases them when it ends
NEEDS = "pip install 'ffn-pipeline[jax]' for a CPU, 'jax[cuda13]' or, with older drivers, 'jax[cuda12]' for a GPU"
PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# TensorFlow and Keras import them for features that are not used here: 45 % of the time to load TensorFlow.
UNUSED = ("jax", "matplotlib", "pandas", "pyarrow")

log = logging.getLogger(__name__)


def load_tensorflow() -> None:
    """Import TensorFlow without the packages that it would load and not use; a later import finds them."""
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: not importable
    gc.disable()  # imports leave no garbage, and looking for it took a fifth of the time
    try:
        import tensorflow  # noqa: F401
    finally:
        gc.enable()
        for name in hidden:
            del sys.modules[name]


def gpu_visible() -> bool:
    """Return whether TensorFlow sees a GPU. The package for CPUs alone is not imported, which takes seconds."""
    if any(metadata.distributions(name="tensorflow-cpu")) and not any(metadata.distributions(name="tensorflow")):
        return False
    load_tensorflow()
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


def require_jax() -> None:
    """Check that JAX is installed and finds its devices.

    Raises
    ------
    ConfigError
        If it is not or does not; the message says how to install it, or quotes JAX.
    """
    if importlib.util.find_spec("jax") is None:
        raise ConfigError(f"engine: found jax, which is not installed here. Install it ({NEEDS}), or choose another")
    try:
        _devices()
    except RuntimeError as error:
        raise ConfigError(f"engine: jax failed to start here: {_one_line(error)}. Or choose another") from None


def jax_gpus() -> list[jax.Device]:
    """Return the GPUs that JAX sees; none, without importing it, if it is not installed or has only CPUs.

    With CUDA installed, JAX fails where GPUs are hidden or their driver is too old: then it sees none, with a warning.
    """
    if importlib.util.find_spec("jax") is None or not _has_plugins():
        return []
    try:
        return [device for device in _devices() if device.platform == "gpu"]
    except RuntimeError as error:
        log.warning("JAX takes no GPU: %s", _one_line(error))
        return []


def jax_capabilities() -> list[tuple[int, ...]]:
    """Return the compute capability of each GPU that JAX sees; (0, 0) for one that has none, of AMD for example."""
    found = [str(getattr(gpu, "compute_capability", "0.0")) for gpu in jax_gpus()]
    return [tuple(map(int, text.split("."))) if text.replace(".", "").isdigit() else (0, 0) for text in found]


def _devices() -> list[jax.Device]:
    os.environ.setdefault(PREALLOCATE, "false")  # or JAX would take most of the memory of every GPU that it sees
    import jax

    return jax.devices()


def _one_line(error: RuntimeError) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _has_plugins() -> bool:
    """Whether something is installed by which JAX reaches other devices than CPUs: for CUDA, for example."""
    return importlib.util.find_spec("jax_plugins") is not None or bool(metadata.entry_points(group="jax_plugins"))


def jax_device() -> jax.Device:
    """Return the GPU of this process, which no other process of this user has reserved, or the CPU if there is none.

    Raises
    ------
    ConfigError
        See `require_jax`.
    """
    require_jax()
    gpus = jax_gpus()
    if gpus:
        return gpus[take_gpu(len(gpus))]
    import jax

    return jax.devices("cpu")[0]


def keep_programs(machine: str | Path | None) -> None:
    """Keep what JAX compiles for a GPU in the folder of the run, or of the user, unless JAX has one already.

    XLA times algorithms as it compiles, so each process would take its own, and round otherwise. Compiling a step of
    flood filling on an H100 took 10 s, and 0.8 s from such a folder.
    """
    if jax_gpus() and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        import jax

        folder = Path(machine or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ffn"), "programs")
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def results_depend_on(device: jax.Device) -> str:
    """Return kind and software of a device: with others, results may be rounded otherwise."""
    found = [device.device_kind, " ".join(device.client.platform_version.split())]
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return ", ".join(found)
