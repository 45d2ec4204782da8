"""The choice of `auto`: the first job writes it to a folder, and all jobs on all machines read it there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.io.atomic import unreadable, write_text_once
from ffn.machine.gpu import gpu_visible, jax_capabilities, jax_gpus
from ffn.machine.limits import cpu_flags

log = logging.getLogger(__name__)

FOLDER = "machine"
ENGINES = ("tensorflow", "openvino", "kernels", "jax")  # tensorflow of training alone
PRECISIONS = ("float32", "bfloat16")  # of training and inference by any library
# Compute capability of the first NVIDIA GPUs that multiply matrices in it: Ampere, Volta.
HALF_CAPABILITIES = {"bfloat16": (8, 0), "float16": (7, 0)}
ASKED_FOR = "asked for"


@dataclass(frozen=True)
class Choice:
    """Engine and precision, neither ``auto``, and the reason; whether they are for a GPU."""

    engine: str
    precision: str
    reason: str = ""
    gpu: bool = False


def choice_name(purpose: str, engine: str, precision: str, model: ModelConfig) -> str:
    """Return the file name of a choice: its purpose and the network.

    Examples
    --------
    >>> choice_name("inference", "auto", "float32", ModelConfig())
    'inference-auto-float32-depth-9-features-32-fov-33-33-33.yaml'
    """
    fov = "-".join(map(str, model.fov_size_zyx))
    return f"{purpose}-{engine}-{precision}-depth-{model.depth}-features-{model.features}-fov-{fov}.yaml"


def choose_once(path: Path | None, choose: Callable[[], Choice]) -> Choice:
    """Return the recorded choice; if there is none, choose and record.

    Of several jobs that choose at the same time, one records its choice and all return it.
    """
    choice = _read(path)
    if choice is None:
        choice = mine = choose()
        if path is not None:
            write_text_once(path, yaml.safe_dump(asdict(mine), sort_keys=False))
            choice = _read(path) or mine  # another job may have been first
    log.info("auto: %s %s, because %s%s", choice.engine, choice.precision, choice.reason, f" ({path})" if path else "")
    if choice.gpu != sees_gpu(choice.engine):
        found = "a CPU, and there is a GPU here. Hide it (CUDA_VISIBLE_DEVICES=-1)"
        if choice.gpu:
            found = "a GPU, and there is none here. Start this job where there is one"
        chosen = f"{choice.engine} {choice.precision} was chosen for {found}"
        raise ConfigError(f"{path}: {chosen}, or set engine and precision")
    return choice


def sees_gpu(engine: str) -> bool:
    """Return whether this engine would compute on a GPU here."""
    return bool(jax_gpus()) if engine == "jax" else engine == "tensorflow" and gpu_visible()


def _read(path: Path | None) -> Choice | None:
    if path is None or not path.is_file():
        return None
    remedy = "To choose again, remove it and its results (the run's segmentation, or the training)"
    with unreadable(path, f"the engine and precision that 'auto' chose. {remedy}", ConfigError):
        recorded = yaml.safe_load(path.read_text())
        recorded.pop("cpu", None)  # of an earlier version
        choice = Choice(**recorded)
        if choice.engine not in ENGINES or choice.precision not in (*PRECISIONS, "float16"):
            raise ValueError(f"found {choice.engine} {choice.precision}")
        return choice


def with_precision(engine: str, reason: str, precision: str, on_gpus: str = "bfloat16") -> Choice:
    """Return the choice of an engine with a precision, for ``auto`` the fastest; a `reason` may be `ASKED_FOR`.

    On GPUs of which all have units for it, ``auto`` takes `on_gpus`.
    """
    on_gpu = sees_gpu(engine)
    if precision != "auto":
        return Choice(engine, precision, reason, on_gpu)
    fastest, why = _gpus_tell(engine, on_gpus) if on_gpu else _cpu_tells()
    return Choice(engine, fastest, why if reason == ASKED_FOR else f"{reason}, and {why}", on_gpu)


def _cpu_tells() -> tuple[str, str]:
    """Take bfloat16 with AMX alone: elsewhere, float32 was faster in training and inference (docs/experiments.md)."""
    return ("bfloat16", "the CPU has AMX") if "amx_bf16" in cpu_flags() else ("float32", "the CPU has no AMX")


def _gpus_tell(engine: str, half: str) -> tuple[str, str]:
    """Ask TensorFlow or JAX for the oldest GPU."""
    oldest = min(jax_capabilities() if engine == "jax" else _tensorflow_capabilities(), default=(0, 0))
    precision = half if oldest >= HALF_CAPABILITIES[half] else "float32"
    return precision, f"the GPU has compute capability {'.'.join(map(str, oldest))}"


def _tensorflow_capabilities() -> list[tuple[int, ...]]:
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [tuple(each.get("compute_capability", (0, 0))) for each in details]
