"""Engine and precision of flood filling; `auto` takes those that are fastest here."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ffn.config import FloodConfig
from ffn.inference.engine import create_engine
from ffn.kernels import vector_lanes
from ffn.kernels.inference import obstacle
from ffn.machine.cpu import cpu_flags
from ffn.model.choice import (
    ASKED_FOR,
    PRECISIONS,
    WORTHWHILE,
    Choice,
    calls_per_second,
    choice_name,
    choose_once,
    sees_gpu,
    with_precision,
)
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
        return with_precision("jax", "JAX alone has float16", "float16", dict)
    engine, reason = (config.engine, ASKED_FOR) if config.engine != "auto" else _fastest_library()
    if config.engine == "auto" and not sees_gpu(engine) and (choice := _kernels_or_measured(model, config, engine)):
        return choice
    # An H100 computes float16 at the rate of bfloat16 and with a ninth of its error; see docs/gpu.md.
    half = "float16" if engine == "jax" else "bfloat16"
    return with_precision(engine, reason, config.precision, lambda: _by_precision(model, engine, config), half)


def _fastest_library() -> tuple[str, str]:
    """JAX keeps images and POMs on the GPU. On CPUs, OpenVINO was faster than TensorFlow so far, and JAX slower."""
    if sees_gpu("jax"):
        return "jax", "JAX sees a GPU"
    if sees_gpu("tensorflow"):
        return "tensorflow", "TensorFlow sees a GPU"
    if importlib.util.find_spec("openvino") is None:
        return "tensorflow", "OpenVINO is not installed"
    return "openvino", "no GPU is visible"


def _kernels_or_measured(model: Model, config: FloodConfig, library: str) -> Choice | None:
    """Take our kernels where they are known to be fastest, or what measuring says; None where they cannot be.

    On a Zen 4 with AVX2 and no more, they did 2.4 times as many FOVs/s as OpenVINO in float32 with 32 features, 1.5
    times with 16, and 0.8 times with 8, which they pad to 16. With AVX-512 they were 2.4 times as fast, too, but on one
    Xeon only, so there they are measured.
    """
    flags, lanes, on_auto = cpu_flags(), vector_lanes(), config.precision == "auto"
    if config.precision == "bfloat16" or (on_auto and "amx_bf16" in flags):
        return None
    if lanes < AVX2_LANES or model.config.features < FEW_FEATURES:
        return None
    if reason := obstacle(model.config.features):
        log.info("auto does without our kernels, because %s", reason)
        return None
    if lanes == AVX2_LANES:
        return Choice("kernels", "float32", "the CPU has AVX2 and no AVX-512")
    kinds = [("kernels", "float32"), (library, "float32")]
    if on_auto and "avx512_bf16" in flags:
        kinds.append((library, "bfloat16"))
    rates = fovs_per_second(model, kinds, config)
    best = max(kinds, key=lambda kind: rates[kind] / (WORTHWHILE if kind[1] == "bfloat16" else 1))
    figures = ", ".join(f"{engine} {precision}: {rate:.1f} FOVs/s" for (engine, precision), rate in rates.items())
    return Choice(*best, f"measured {figures}")


def _by_precision(model: Model, engine: str, config: FloodConfig) -> dict[str, float]:
    rates = fovs_per_second(model, [(engine, precision) for precision in PRECISIONS], config)
    return {precision: rate for (_, precision), rate in rates.items()}


def fovs_per_second(
    model: Model, kinds: Sequence[tuple[str, str]], config: FloodConfig
) -> dict[tuple[str, str], float]:
    """Run the network by each engine and precision, in turn; return FOVs/s by engine and precision."""
    rates = calls_per_second({" ".join(kind): prediction_of_noise(model, *kind, config) for kind in kinds})
    return {kind: rates[" ".join(kind)] for kind in kinds}


def prediction_of_noise(model: Model, engine: str, precision: str, config: FloodConfig) -> Callable[[], object]:
    """Return a function that runs the network once, on noise."""
    built = create_engine(model, engine, precision)
    shape = (1, *model.config.fov_size_zyx)
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    pom = np.full(shape, math.log(config.pad_value / (1 - config.pad_value)), np.float32)
    return lambda: built.predict(image, pom)
