"""Canvases on which objects advance together, and the jobs, of subvolumes or windows, that take turns on them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.engine import create_engine
from ffn.inference.flood import ObjectGrower
from ffn.inference.inputs import Network
from ffn.machine.gpu import jax_device
from ffn.machine.limits import memory_mb

if TYPE_CHECKING:
    import jax

    from ffn.inference.device.lanes import DeviceLanes

MOST_READERS = 8  # jobs that are read, and searched for seeds, at the same time; our choice
MOST_CANVASES = 64  # with `auto`; an H100 did 4 % more FOVs/s in batches of 64 than of 32
MAPS_OF_A_FOV = 10  # float32 maps that the network holds at once, XLA's buffers included; our choice, on the safe side
USABLE = 0.85  # share of the free memory; our choice
FLOAT_BYTES = 4
BLOCKED_BYTES = 1  # per voxel: whether a FOV may be centred there
HOST_BYTES = 15  # per voxel of a canvas, on the host: segmentations and claims stay there
SEEDING_BYTES = 25  # per voxel while seeds are found
HOST_BASE = 2 * 10**9  # of the process without canvases; our choice


class HostLanes:
    """A canvas in the memory of the host, for any engine."""

    size = 1

    def __init__(self, network: Network, config: FloodConfig) -> None:
        model, choice = network.model, network.choice
        self._engine = create_engine(model, choice.engine, choice.precision)
        self.name = self._engine.name
        self._network, self._thresholds = network, Thresholds.of(config)

    def canvas(self, lane: int, raw: np.ndarray, segmentation: np.ndarray, inside: Box | None = None) -> Canvas:
        """Return a canvas for another subvolume or window than before."""
        image = self._network.normalisation.apply(raw)
        return Canvas(image, self._network.model.config, self._thresholds, segmentation, inside)

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate one FOV of each object that still grows; return the number of FOVs."""
        num_fovs = 0
        for grower in growers:
            if (position := grower.next_position()) is not None:
                image, pom_logit = grower.canvas.read(position)
                grower.put(self._engine.predict(image[None], pom_logit[None])[0])
                num_fovs += 1
        return num_fovs


Lanes: TypeAlias = "HostLanes | DeviceLanes"  # on which objects of different subvolumes, or windows, grow in lockstep


def open_lanes(network: Network, config: FloodConfig, num_jobs: int, shape_zyx: ZYX, dtype: np.dtype) -> Lanes:
    """Open as many canvases on the device as the options say with the engine jax, one on the host with others."""
    if network.choice.engine != "jax":
        return HostLanes(network, config)
    wanted = 1 if config.canvases == "auto" else config.canvases
    from ffn.inference.device.lanes import DeviceLanes

    device = jax_device()
    if config.canvases == "auto" and device.platform != "cpu":
        wanted = fitting_canvases(device, network.model.config, shape_zyx, dtype)
    return DeviceLanes(network, Thresholds.of(config), min(wanted, num_jobs), shape_zyx, dtype)


def fitting_canvases(device: jax.Device, model: ModelConfig, shape_zyx: ZYX, dtype: np.dtype) -> int:
    """Return how many canvases fit into the memories of a GPU and of its machine, at least one."""
    voxels, maps = math.prod(shape_zyx), MAPS_OF_A_FOV * model.features * math.prod(model.fov_size_zyx)
    each = voxels * (min(dtype.itemsize, FLOAT_BYTES) + FLOAT_BYTES + BLOCKED_BYTES) + FLOAT_BYTES * maps
    host = memory_mb() * 10**6
    stats = device.memory_stats() or {"bytes_limit": host}
    free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    left_on_host = USABLE * host - HOST_BASE - MOST_READERS * SEEDING_BYTES * voxels
    return max(1, min(MOST_CANVASES, int(USABLE * free / each), int(left_on_host / (HOST_BYTES * voxels))))


class CanvasJob(Protocol):
    """Objects that grow one after the other in one array."""

    def read(self) -> None:
        """Read the inputs and find the seeds. CPU-bound; uses no canvas."""
        ...

    def enter(self, lanes: Lanes, lane: int) -> None:
        """Begin on a canvas."""
        ...

    def growing(self) -> ObjectGrower | None:
        """Return the object that grows next, None when all have grown; the canvas is then another job's."""
        ...


J = TypeVar("J", bound=CanvasJob)


def run_jobs(
    jobs: Iterable[J],
    lanes: Lanes,
    threads: int,
    after_step: Callable[[int, Collection[J]], None] = lambda num_fovs, active: None,
) -> Iterator[J]:
    """Yield each job when all its objects have grown.

    The jobs on the canvases advance together, by FOVs or bursts of them. Each gets the same result as alone. A few are
    read ahead, in order; unless no canvas is at work, one that is not read yet is not waited for.
    """
    ahead = min(MOST_READERS, threads, lanes.size)
    waiting, reading, active = iter(jobs), deque[tuple[J, Future[None]]](), dict[int, J]()
    with ThreadPoolExecutor(ahead) as pool:
        while True:
            for lane in range(lanes.size):
                for job in islice(waiting, ahead - len(reading)):
                    reading.append((job, pool.submit(job.read)))
                if lane not in active and reading and (not active or reading[0][1].done()):
                    job, read = reading.popleft()
                    read.result()
                    job.enter(lanes, lane)
                    active[lane] = job
            if not active:
                return
            growing = []
            for lane, job in list(active.items()):
                if (grower := job.growing()) is not None:
                    growing.append(grower)
                else:
                    yield active.pop(lane)
            after_step(lanes.advance(growing), active.values())
