"""The engine and precision of flood filling that are fastest here, where the options leave them to `auto`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ffn.config import FloodConfig
from ffn.inference.engine import Engine, create_engine
from ffn.machine.gpu import gpu_visible
from ffn.machine.pace import calls_per_second
from ffn.model.choice import Choice, choice_name, choose_once
from ffn.model.precision import PRECISIONS, fastest_precision
from ffn.model.store import Model


def chosen_engine(model: Model, config: FloodConfig, machine: str | None = None) -> Engine:
    """Build the engine of the options; where they say ``auto``, the one that is fastest here or was chosen before.

    Parameters
    ----------
    model : Model
        Architecture and weights.
    config : FloodConfig
        Engine, precision, threads and batch size.
    machine : str, optional
        Folder with the choices of the run. The first job records there what `auto` takes, and all others take the same.

    Raises
    ------
    ConfigError
        If this machine cannot run the choice, or ``OMP_NUM_THREADS`` is needed but not a number.
    """
    choice = Choice(config.engine, config.precision)
    if "auto" in (config.engine, config.precision):
        name = choice_name("inference", config.engine, config.precision, model.config)
        choice = choose_once(Path(machine, name) if machine else None, lambda: _choose(model, config))
    return create_engine(model, choice.engine, choice.precision, config.threads, config.batch_size)


def _choose(model: Model, config: FloodConfig) -> Choice:
    engine, reason = (config.engine, "asked for") if config.engine != "auto" else _fastest_engine()
    on_gpu = engine == "tensorflow" and gpu_visible()
    if config.precision != "auto":
        return Choice(engine, config.precision, reason, on_gpu)
    precision, why = fastest_precision(on_gpu, lambda: fovs_per_second(model, engine, config))
    return Choice(engine, precision, why if config.engine != "auto" else f"{reason}, and {why}", on_gpu)


def _fastest_engine() -> tuple[str, str]:
    """OpenVINO was the faster one on every CPU so far."""
    if gpu_visible():
        return "tensorflow", "a GPU is visible"
    if importlib.util.find_spec("openvino") is None:
        return "tensorflow", "OpenVINO is not installed"
    return "openvino", "no GPU is visible"


def fovs_per_second(model: Model, engine: str, config: FloodConfig) -> dict[str, float]:
    """Run the network in every precision, in turn; return FOVs/s by precision."""
    calls = {name: prediction_of_noise(model, engine, name, config) for name in PRECISIONS}
    return {name: config.batch_size * rate for name, rate in calls_per_second(calls).items()}


def prediction_of_noise(model: Model, engine: str, precision: str, config: FloodConfig) -> Callable[[], object]:
    """Return a function that runs the network once, on a batch of noise."""
    built = create_engine(model, engine, precision, config.threads, config.batch_size)
    shape = (config.batch_size, *model.config.fov_size_zyx)
    image = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    pom = np.full(shape, math.log(config.pad_value / (1 - config.pad_value)), np.float32)
    return lambda: built.predict(image, pom)
