"""The engines of flood filling: their choice, and those of CPUs; JAX has canvases of its own, see `device`."""

from __future__ import annotations

import functools
import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import FloodConfig
from ffn.errors import ConfigError
from ffn.kernels import vector_lanes
from ffn.kernels.inference import KernelNetwork, obstacle
from ffn.machine.limits import cpu_flags, threads_here
from ffn.model.choice import ASKED_FOR, Choice, choice_name, choose_once, sees_gpu, with_precision
from ffn.model.network import conv_names, openvino_network
from ffn.model.store import Model

if TYPE_CHECKING:
    import openvino

log = logging.getLogger(__name__)

AVX2_LANES = 8
FEW_FEATURES = 12  # with fewer, OpenVINO is faster


def chosen(model: Model, config: FloodConfig, machine: str | None = None) -> Choice:
    """Return engine and precision of the options; ``auto`` is the fastest here, or the choice of an earlier job."""
    choice = Choice(config.engine, config.precision)
    if "auto" in (config.engine, config.precision):
        name = choice_name("inference", config.engine, config.precision, model.config)
        choice = choose_once(Path(machine, name) if machine else None, lambda: _choose(model, config))
    return choice


def _choose(model: Model, config: FloodConfig) -> Choice:
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _fastest(model, config)
    if engine == "kernels":
        return Choice(engine, "float32", reason)
    # An H100 computes float16 at the rate of bfloat16 and with a ninth of its error; see docs/gpu.md.
    half = "float16" if engine == "jax" else "bfloat16"
    return with_precision(engine, reason, config.precision, half)


def _fastest(model: Model, config: FloodConfig) -> tuple[str, str]:
    """JAX keeps images and POMs on the GPU. On CPUs, take what was fastest (docs/experiments.md)."""
    if config.precision == "float16":
        return "jax", "JAX alone has float16"
    if sees_gpu("jax"):
        return "jax", "JAX sees a GPU"
    has_openvino = importlib.util.find_spec("openvino") is not None
    wants_half = config.precision == "bfloat16" or (
        config.precision == "auto" and has_openvino and "amx_bf16" in cpu_flags()
    )
    if not wants_half and vector_lanes() >= AVX2_LANES and model.config.features >= FEW_FEATURES:
        reason = obstacle(model.config.features)
        if reason is None:
            return "kernels", "they are the fastest in float32 on CPUs with AVX2"
        log.info("auto does without our kernels, because %s", reason)
    return ("openvino", "no GPU is visible") if has_openvino else ("jax", "OpenVINO is not installed")


class OpenVinoEngine:
    """The network in OpenVINO, without TensorFlow; all threads compute one FOV.

    Notes
    -----
    On 2 AMX cores (depth 12, bfloat16), no way of batching FOVs was clearly faster, and all gave the same logits, bit
    for bit.

    OpenVINO would bind the threads of every process to the first cores, so that jobs side by side shared one core and
    left the others idle. On cores that the scheduler or ``taskset`` gives to this process, it stays in any case.
    """

    def __init__(self, model: Model, precision: str, threads: int) -> None:
        try:
            import openvino
        except ImportError:
            raise ConfigError(
                "engine: found openvino, which is not installed here. Install it, or choose kernels"
            ) from None

        if precision == "bfloat16" and "avx512f" not in cpu_flags():
            raise ConfigError(
                "precision: found bfloat16, OpenVINO computes in float32 on this CPU, which has no AVX-512. "
                "Start this job on a CPU that has it, or choose float32"
            )
        self.name = f"openvino {precision}"
        settings = {
            "INFERENCE_PRECISION_HINT": {"float32": openvino.Type.f32, "bfloat16": openvino.Type.bf16}[precision],
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        }
        compiled = _openvino_core().compile_model(openvino_network(model.config, model.weights), "CPU", settings)
        self._request = compiled.create_infer_request()

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """Return the updated POM in logits, float32 (B, Z, Y, X), which the caller may change."""
        image, pom_logit = (np.require(array, np.float32, ["C", "W"]) for array in (image, pom_logit))
        answer = np.empty_like(pom_logit)
        for fovs in zip(image, pom_logit, answer, strict=True):  # OpenVINO reads and writes these arrays in place
            seen, given, updated = map(_tensor, fovs)
            self._request.set_input_tensor(0, seen)
            self._request.set_input_tensor(1, given)
            self._request.set_output_tensor(updated)
            self._request.infer()
        return answer


class KernelEngine(KernelNetwork):
    """The network in float32 in our own C++, which needs a quarter of the multiplications; without TensorFlow."""

    name = "kernels float32"

    def __init__(self, model: Model, precision: str, threads: int) -> None:
        if precision != "float32":
            raise ConfigError(
                f"precision: found {precision}, the engine kernels has float32 alone. Choose it, or another engine"
            )
        if reason := obstacle(model.config.features):
            raise ConfigError(f"engine: found kernels, but {reason}. Choose openvino")
        names = [f"{name}/{kind}" for name in conv_names(model.config) for kind in ("weights", "biases")]
        super().__init__([model.weights[name] for name in names], model.config.fov_size_zyx, threads)


KINDS: dict[str, type[OpenVinoEngine] | type[KernelEngine]] = {"openvino": OpenVinoEngine, "kernels": KernelEngine}


def create_engine(model: Model, engine: str, precision: str, threads: int = 0) -> OpenVinoEngine | KernelEngine:
    """Build an engine."""
    if engine not in KINDS:  # of a run that began with an earlier version
        raise ConfigError(f"engine: found {engine}, which segments no more. Choose {' or '.join(KINDS)}, or jax")
    threads = threads or threads_here()
    log.info("engine: %s %s, %d threads", engine, precision, threads)
    return KINDS[engine](model, precision, threads)


@functools.cache
def _openvino_core() -> openvino.Core:
    """Return the one core of this process, which stays until its end.

    OpenVINO gives the thread a stack for the handlers of signals, and takes it away with the core. When cores ended in
    another order than they began, that of a core that was gone was left, and the next signal killed the process.
    """
    import openvino

    return openvino.Core()


def _tensor(fov: np.ndarray) -> openvino.Tensor:
    """View one FOV as an OpenVINO tensor with batch and channel axes, without a copy."""
    import openvino

    return openvino.Tensor(fov[None, ..., None], shared_memory=True)
