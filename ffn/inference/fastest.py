"""Engine and precision of flood filling; `auto` takes those that are fastest here."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from ffn.config import FloodConfig
from ffn.kernels import vector_lanes
from ffn.kernels.inference import obstacle
from ffn.machine.cpu import cpu_flags
from ffn.model.choice import ASKED_FOR, Choice, choice_name, choose_once, sees_gpu, with_precision
from ffn.model.store import Model

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
    if config.engine == "kernels":
        return Choice("kernels", "float32", "the kernels have no other precision")
    if config.precision == "float16":
        return with_precision("jax", "JAX alone has float16", "float16")
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _fastest_library()
    if config.engine == "auto" and not sees_gpu(engine) and _kernels_are_fastest(model, config):
        return Choice("kernels", "float32", "they are the fastest in float32 on CPUs with AVX2")
    # An H100 computes float16 at the rate of bfloat16 and with a ninth of its error; see docs/gpu.md.
    half = "float16" if engine == "jax" else "bfloat16"
    return with_precision(engine, reason, config.precision, half)


def _fastest_library() -> tuple[str, str]:
    """JAX keeps images and POMs on the GPU. On CPUs, OpenVINO was faster so far."""
    if sees_gpu("jax"):
        return "jax", "JAX sees a GPU"
    if importlib.util.find_spec("openvino") is None:
        return "jax", "OpenVINO is not installed"
    return "openvino", "no GPU is visible"


def _kernels_are_fastest(model: Model, config: FloodConfig) -> bool:
    """Take our kernels where they were faster than any library in float32 and bfloat16 (docs/experiments.md)."""
    wants_half = config.precision == "bfloat16" or (config.precision == "auto" and "amx_bf16" in cpu_flags())
    if wants_half or vector_lanes() < AVX2_LANES or model.config.features < FEW_FEATURES:
        return False
    if reason := obstacle(model.config.features):
        log.info("auto does without our kernels, because %s", reason)
        return False
    return True
