"""Objects that grow, each on its own canvas, and the jobs, of subvolumes or windows, that take turns on canvases."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box, zyx
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.engine import Engine, create_engine
from ffn.inference.inputs import Network
from ffn.inference.movement import FaceMaxMovement
from ffn.machine.jax_device import jax_device
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


Arrays = dict[str, np.ndarray]


class ObjectGrower:
    """An object that grows from its seed until no position is left."""

    def __init__(self, canvas: Canvas, seed_zyx: ZYX, max_fovs: int | None = None) -> None:
        canvas.start(seed_zyx)
        self.canvas = canvas
        self.seed_zyx = seed_zyx
        self.limited = False  # whether `max_fovs` has stopped it
        self._movement = FaceMaxMovement(seed_zyx, canvas.deltas_zyx, inside=canvas.inside)
        self._max_fovs = max_fovs
        self._next: ZYX | None = None
        self._elsewhere: Callable[[], Sequence[ZYX]] | None = None  # fetches the queue from where `leap` left it

    @property
    def num_fovs(self) -> int:
        """Number of network evaluations so far."""
        return len(self._movement.evaluated)

    @property
    def evaluated(self) -> np.ndarray:
        """Positions evaluated so far, an int64 array of shape (N, 3)."""
        return np.array(self._movement.evaluated, np.int64).reshape(-1, 3)

    @property
    def is_strong(self) -> bool:
        """Whether the object still includes its seed."""
        return self.canvas.is_strong(self.seed_zyx)

    @property
    def num_left(self) -> int | None:
        """Number of network evaluations before the object is `limited`, None without a limit."""
        return None if self._max_fovs is None else self._max_fovs - self.num_fovs

    @property
    def queue(self) -> list[ZYX]:
        """Positions to go to, the next one first."""
        if self._elsewhere:
            return list(self._elsewhere())
        return [*([] if self._next is None else [self._next]), *self._movement.queue]

    def next_position(self) -> ZYX | None:
        """Return the next position to evaluate, None when the object has grown.

        A second call returns the same position, unless another object has taken the voxel since.
        """
        while self._next is None or not self.canvas.may_visit(self._next):
            self._next = self._movement.pop()
            if self._next is None:
                return None
        if not self.is_strong:
            return None
        self.limited = self._max_fovs is not None and self.num_fovs >= self._max_fovs
        return None if self.limited else self._next

    def put(self, answer: np.ndarray) -> None:
        """Write the network's answer at `next_position` to the canvas, and queue the moves from there."""
        assert self._next is not None
        position, self._next = self._next, None
        self._movement.follow(position, self.canvas.put(position, answer))

    def leap(self, evaluated: Iterable[ZYX], following: ZYX | None, queue: Callable[[], Sequence[ZYX]]) -> None:
        """Take over FOVs that were evaluated, written and followed elsewhere, where the queue stays."""
        self._movement.evaluated.extend(evaluated)
        self._movement.queue.clear()
        self._next, self._elsewhere = following, queue

    def state(self) -> Arrays:
        """Return everything needed to resume, as arrays."""
        box, pom_logit = self.canvas.visited_pom()
        return {
            "seed": np.array(self.seed_zyx),
            "visited": np.array([box.start, box.stop]),
            "pom_logit": pom_logit,
            "queue": np.array(self.queue, np.int64).reshape(-1, 3),
            "evaluated": self.evaluated,
        }

    @classmethod
    def resume(cls, canvas: Canvas, state: Arrays, max_fovs: int | None = None) -> ObjectGrower:
        """Restore the result of `state` on `canvas`."""
        grower = cls(canvas, zyx(state["seed"]), max_fovs)
        start, stop = state["visited"]
        canvas.resume(Box(zyx(start), zyx(stop)), state["pom_logit"])
        queue, evaluated = (map(zyx, state[name].tolist()) for name in ("queue", "evaluated"))
        grower._movement = FaceMaxMovement(grower.seed_zyx, canvas.deltas_zyx, queue, evaluated, canvas.inside)
        return grower


def advance(engine: Engine, growers: Iterable[ObjectGrower]) -> int:
    """Evaluate one FOV of each object that still grows; return the number of FOVs."""
    num_fovs = 0
    for grower in growers:
        if (position := grower.next_position()) is not None:
            image, pom_logit = grower.canvas.read(position)
            grower.put(engine.predict(image[None], pom_logit[None])[0])
            num_fovs += 1
    return num_fovs


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
        return advance(self._engine, growers)


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
