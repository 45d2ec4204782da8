"""Engines of CPUs, canvases on which objects advance together, and the jobs, of subvolumes or windows, on them."""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.flood import ObjectGrower
from ffn.inference.inputs import Network
from ffn.kernels.inference import KernelNetwork, obstacle
from ffn.machine.gpu import jax_device
from ffn.machine.limits import cpu_flags, memory_mb, threads_here
from ffn.model.network import conv_names, openvino_network
from ffn.model.store import Model

if TYPE_CHECKING:
    import jax
    import openvino

    from ffn.inference.device.lanes import DeviceLanes

log = logging.getLogger(__name__)

MOST_READERS = 8  # jobs that are read, and searched for seeds, at the same time; our choice
MOST_CANVASES = 64  # with `auto`; an H100 did 4 % more FOVs/s in batches of 64 than of 32
MAPS_OF_A_FOV = 10  # float32 maps that the network holds at once, XLA's buffers included; our choice, on the safe side
USABLE = 0.85  # share of the free memory; our choice
FLOAT_BYTES = 4
BLOCKED_BYTES = 1  # per voxel: whether a FOV may be centred there
HOST_BYTES = 15  # per voxel of a canvas, on the host: segmentations and claims stay there
SEEDING_BYTES = 25  # per voxel while seeds are found
HOST_BASE = 2 * 10**9  # of the process without canvases; our choice


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
            found = "engine: found openvino, which is not installed here"
            raise ConfigError(f"{found}. Install it, or choose kernels") from None

        if precision == "bfloat16" and "avx512f" not in cpu_flags():
            found = "precision: found bfloat16, OpenVINO computes in float32 on this CPU, which has no AVX-512"
            raise ConfigError(f"{found}. Start this job on a CPU that has it, or choose float32")
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
            found = f"precision: found {precision}, the engine kernels has float32 alone"
            raise ConfigError(f"{found}. Choose it, or another engine")
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


def advance(engine: OpenVinoEngine | KernelEngine, growers: Iterable[ObjectGrower]) -> int:
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
