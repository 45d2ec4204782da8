"""Canvases that advance together, each of another subvolume or window: on the host with any engine, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ffn.config import FloodConfig
from ffn.geometry import ZYX, Box
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.engine import create_engine
from ffn.inference.grower import FovBatch, ObjectGrower
from ffn.inference.inputs import Network
from ffn.machine.jax_device import jax_device
from ffn.machine.limits import memory_mb

MOST_READERS = 8  # jobs that are read, and searched for seeds, at the same time; our choice


class Lanes(Protocol):
    """Canvases on which objects of different subvolumes, or windows, grow in lockstep."""

    name: str
    size: int

    def canvas(self, lane: int, raw: np.ndarray, segmentation: np.ndarray, inside: Box | None = None) -> Canvas:
        """Return canvas number `lane`, for another subvolume than before."""
        ...

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate one FOV of each object, each on its own canvas; return the number of FOVs."""
        ...


class HostLanes:
    """Canvases in the memory of the host, for any engine."""

    def __init__(self, network: Network, config: FloodConfig, size: int = 1) -> None:
        model, choice = network.model, network.choice
        engine = create_engine(model, choice.engine, choice.precision, batch_size=size)
        self.name, self.size = engine.name, size
        self._network, self._thresholds = network, Thresholds.of(config)
        self._batch = FovBatch(engine, model.config.fov_size_zyx, size)

    def canvas(self, lane: int, raw: np.ndarray, segmentation: np.ndarray, inside: Box | None = None) -> Canvas:
        """Return a new canvas; see `Lanes.canvas`."""
        image = self._network.normalisation.apply(raw)
        return Canvas(image, self._network.model.config, self._thresholds, segmentation, inside)

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate one FOV of each object; see `Lanes.advance`."""
        return self._batch.advance(growers)


def open_lanes(network: Network, config: FloodConfig, num_jobs: int, shape_zyx: ZYX, dtype: np.dtype) -> Lanes:
    """Open as many canvases as the options say: on the device with the engine jax, on the host with others."""
    wanted = None if config.canvases == "auto" else config.canvases
    if network.choice.engine != "jax":
        return HostLanes(network, config, min(wanted or 1, num_jobs))
    from ffn.inference.device.lanes import DeviceLanes
    from ffn.inference.device.memory import bytes_of_canvas, fitting_on_host, free_bytes, num_canvases

    device, on_host = jax_device(), None
    if device.platform == "cpu":
        wanted = wanted or 1
    else:
        on_host = fitting_on_host(memory_mb() * 10**6, shape_zyx, MOST_READERS)
    each = bytes_of_canvas(network.model.config, shape_zyx, dtype)
    size = num_canvases(wanted, num_jobs, shape_zyx, each, free_bytes(device), on_host)
    return DeviceLanes(network, Thresholds.of(config), size, shape_zyx, dtype)
