"""Memory and time that jobs need, from measured factors."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ffn.assembly.config import Agglomeration
from ffn.config import FloodConfig, ModelConfig
from ffn.inference.lanes import HOST_BYTES, MOST_CANVASES, MOST_READERS, SEEDING_BYTES
from ffn.machine.limits import cpu_flags, gpus_here, usable_cores
from ffn.model.network import num_weights
from ffn.training.config import TrainConfig
from ffn.training.data.examples import patch_size
from ffn.training.data.volumes import PRELOAD_BYTES
from ffn.workflow.stages import STAGES

BASE_MINUTES = 10  # start, imports, a slow file system
SAFETY = 4  # factor on the time: cores and file systems differ
PLANNED_THREADS = 8  # of a job with the network, as in the profiles; the plan may not change with the machine
FOVS_PER_DELTAS = 1.0  # FOVs per `deltas_zyx` box of voxels, with what is mirrored; FIB-25: 0.97 to 1.02
FLOAT_BYTES = 4
# Of training, measured on two cores with AVX2 at depths 5, 9 and 12, with a margin of a fifth.
MAPS_PER_LAYER = 2  # of a FOV, kept for the backward pass; a module of the network has two layers
MAPS_OF_A_FOV = 24  # further ones, of the layer at work
GRADIENTS_OF_A_WORKER = 4  # as computed, as sent, and what compression keeps
PATCHES_OF_A_LANE = 10  # three arrays of three examples, and the canvas
VOXEL_BYTES = 12  # of a volume in memory: image and labels, at most
LEAST_VOXEL_BYTES = 2  # uint8, and labels in one byte where they are few
MAPS_OF_AN_INFERENCE = 3  # of a FOV; a layer's input and output, and the module's input
BACKWARD = 3  # operations of a training step for one of a prediction: forward, gradients of data and of weights
TRAINING_FLOPS_PER_CORE = 1.5e10  # of TensorFlow's training in float32 with AVX2, whose weight gradients are slow there
TRAINING_FOV_SECONDS = 0.02  # outside the network, on a slow core; 2 ms on a Xeon
FLOPS_PER_CORE = 5e10  # of a convolution in float32 on an old core; ours do 1.7e11, in bfloat16 with AMX 1e12
# 395 FOVs/s of 46 GFLOP. An H100 did 447 on a single canvas, at 67e71c4; several canvases are faster.
GPU_FLOPS = 3e13
# Of this machine, for forecasts: README's hours of training the default network, per core.
FLOPS_HERE = {"amx_tile": 1.2e12, "avx512f": 3e11, "": 1.75e11}
FOV_SECONDS_HERE = 0.002
GPU_FOV_SECONDS = 0.001  # outside the network, also of a small one


def memory_mb(stage: str, num_voxels: int = 0, threads: int = 1) -> int:
    """Memory of one job of a stage, MB.

    Examples
    --------
    >>> memory_mb("segment", 256**3)
    3507
    """
    need = STAGES[stage].need
    return math.ceil(need.base_mb + need.bytes_per_voxel * num_voxels / 1e6 + need.mb_per_thread * threads)


def training_mb(model: ModelConfig, train: TrainConfig, processes: int = 1, volumes: Iterable[int] = ()) -> int:
    """Memory of a training on one node, MB.

    Examples
    --------
    >>> network = ModelConfig(depth=9, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    >>> [training_mb(network, TrainConfig(batch_size=size)) for size in (1, 8)]
    [2289, 4254]
    """
    layers = 2 * model.depth
    maps = train.batch_size * (MAPS_PER_LAYER * layers + MAPS_OF_A_FOV)
    lanes = train.virtual_workers * train.batch_size
    floats = (
        maps * model.features * math.prod(model.fov_size_zyx)
        + lanes * PATCHES_OF_A_LANE * math.prod(patch_size(model, train))
        + train.virtual_workers * GRADIENTS_OF_A_WORKER * num_weights(model)
    )
    small = [voxels for voxels in volumes if LEAST_VOXEL_BYTES * voxels <= PRELOAD_BYTES]
    kept = sum(min(VOXEL_BYTES * voxels, PRELOAD_BYTES) for voxels in small)
    return processes * (memory_mb("train") + math.ceil((FLOAT_BYTES * floats + kept) / 1e6))


def flooding_mb(num_voxels: int, model: ModelConfig, canvases: int = 1) -> int:
    """Memory of flood filling boxes, MB.

    Examples
    --------
    >>> network = ModelConfig(features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    >>> [flooding_mb(256**3, network, size) for size in (1, 64)]
    [3521, 23181]
    """
    return memory_mb("segment", num_voxels) + _canvases_mb(num_voxels, model, canvases)


def agglomerating_mb(config: Agglomeration, model: ModelConfig, gpus: int) -> int:
    """Memory of judging contacts on a machine with this number of GPUs, MB."""
    sides = zip(config.window_radius_zyx, model.context_zyx, strict=True)  # at most, in a small box
    window = math.prod(2 * (radius + more) + 1 for radius, more in sides)
    return memory_mb("agglomerate") + _canvases_mb(window, model, most_canvases(config, gpus))


def _canvases_mb(num_voxels: int, model: ModelConfig, canvases: int) -> int:
    """Memory of the network, and of all canvases but the first, MB."""
    fovs = canvases * MAPS_OF_AN_INFERENCE * model.features * math.prod(model.fov_size_zyx)
    further_bytes = (canvases - 1) * HOST_BYTES + (min(canvases, MOST_READERS) - 1) * SEEDING_BYTES
    return math.ceil((FLOAT_BYTES * fovs + further_bytes * num_voxels) / 1e6)


def minutes(stage: str, num_voxels: int, threads: int = 1) -> int:
    """Time of one job of a stage that runs no network, minutes.

    Examples
    --------
    >>> minutes("export", 1000**3)
    144
    """
    seconds = STAGES[stage].need.seconds_per_mvoxel * num_voxels / 1e6 / threads
    return BASE_MINUTES + math.ceil(SAFETY * seconds / 60)


def flooding_minutes(num_voxels: int, model: ModelConfig, threads: int = 1, on_gpu: bool = False) -> int:
    """Time of flood filling a box, minutes. Agglomeration takes less: 0.36 FOVs for 1,000 voxels of FIB-25, not 2.

    Examples
    --------
    >>> network = ModelConfig(depth=12, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    >>> [flooding_minutes(512**3, network, 16, on_gpu) for on_gpu in (False, True)]
    [271, 22]
    """
    fovs = FOVS_PER_DELTAS * num_voxels / math.prod(model.deltas_zyx)
    seconds = fov_flops(model) / (FLOPS_PER_CORE * threads)
    if on_gpu:
        seconds = GPU_FOV_SECONDS + fov_flops(model) / GPU_FLOPS
    return BASE_MINUTES + math.ceil(fovs * seconds / 60)


def jobs_within(hours: int, num_minutes: int, num_parts: int) -> int:
    """Return how many jobs share parts that take one job `num_minutes`, so that none of several parts takes longer.

    Examples
    --------
    >>> jobs_within(12, minutes("export", 10**13), 10**13 // 256**3), jobs_within(1, 10**4, 3)
    (1881, 3)
    """
    of_a_job = num_parts * (60 * hours - BASE_MINUTES) // max(1, num_minutes - BASE_MINUTES)
    return math.ceil(num_parts / max(1, of_a_job))


def training_minutes(model: ModelConfig, train: TrainConfig, threads: int = 1) -> int:
    """Time of a training, minutes.

    Examples
    --------
    >>> network = ModelConfig(depth=9, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    >>> [training_minutes(network, TrainConfig(max_steps=1000, virtual_workers=n)) for n in (1, 16)]
    [130, 1924]
    """
    fovs = train.max_steps * train.virtual_workers * train.batch_size
    seconds = TRAINING_FOV_SECONDS + BACKWARD * fov_flops(model) / (TRAINING_FLOPS_PER_CORE * threads)
    return BASE_MINUTES + math.ceil(fovs * seconds / 60)


def training_here(model: ModelConfig, fovs: float) -> float:
    """Return how long this machine is likely to take for the FOVs of a training, minutes."""
    return _minutes_here(fovs, BACKWARD * fov_flops(model))


def flooding_here(model: ModelConfig, num_voxels: int) -> float:
    """Return how long this machine is likely to take to flood some voxels, minutes."""
    return _minutes_here(FOVS_PER_DELTAS * num_voxels / max(1, math.prod(model.deltas_zyx)), fov_flops(model))


def _minutes_here(fovs: float, flops: float) -> float:
    gpus, flags = gpus_here(), cpu_flags()
    of_core = next(rate for flag, rate in FLOPS_HERE.items() if not flag or flag in flags)
    seconds, rate = (GPU_FOV_SECONDS, GPU_FLOPS) if gpus else (FOV_SECONDS_HERE, of_core)
    return fovs * (seconds + flops / rate) / (gpus or usable_cores()) / 60


def in_words(minutes: float) -> str:
    """Return a time as a person says it.

    Examples
    --------
    >>> in_words(0.2), in_words(200), in_words(9000)
    ('1 min', '3 h', '6 days')
    """
    if minutes < 90:
        return f"{max(1, round(minutes))} min"
    return f"{minutes / 60:.0f} h" if minutes < 5760 else f"{minutes / 1440:.0f} days"


def fov_flops(model: ModelConfig) -> float:
    """Floating-point operations per FOV: the network's 3×3×3 convolutions, two per module."""
    layer = 2 * 27 * model.features**2 * math.prod(model.fov_size_zyx)
    return float(2 * model.depth * layer)


def most_canvases(config: FloodConfig, gpus: int) -> int:
    """Return how many canvases a job may have, on machines with this number of GPUs."""
    if config.canvases != "auto":
        return config.canvases
    return MOST_CANVASES if gpus else 1


def takes_gpu(config: FloodConfig) -> bool:
    """Whether a job may compute on a GPU, if it sees one."""
    return config.engine in ("auto", "jax")


def threads_of(num_jobs: int, cores: int, gpus: int) -> int:
    """Return the cores for each of some jobs that share those of a machine, and its GPUs if they take one each.

    Examples
    --------
    >>> threads_of(4, 16, 0), threads_of(4, 16, 1), threads_of(1, 16, 2), threads_of(99, 16, 0), threads_of(0, 16, 0)
    (4, 16, 16, 1, 16)
    """
    at_a_time = min(num_jobs, gpus) if gpus else num_jobs
    return max(1, cores // max(1, at_a_time))
