"""How many canvases the memory of a device holds, known before anything is put there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX
from ffn.machine.limits import memory_mb

if TYPE_CHECKING:
    import jax

MOST_CANVASES = 64  # with `auto`; our choice, not measured on a GPU
MAPS_OF_A_FOV = 10  # float32 maps that the network holds at once, XLA's buffers included; our choice, on the safe side
USABLE = 0.85  # share of the free memory; our choice
FLOAT_BYTES = 4
HOST_BYTES = 15  # per voxel of a canvas, on the host
SEEDING_BYTES = 25  # per voxel while seeds are found
HOST_BASE = 2 * 10**9  # of the process without canvases; our choice


def free_bytes(device: jax.Device) -> int:
    """Return how much of a device's memory this process may still take; on a CPU, all of the machine's memory."""
    stats = device.memory_stats() if device.platform == "gpu" else None
    if not stats:
        return memory_mb() * 10**6
    return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))


def bytes_of_canvas(model: ModelConfig, shape_zyx: ZYX, dtype: np.dtype) -> int:
    """Return the memory of one canvas and of the network for its FOV.

    Examples
    --------
    >>> network = ModelConfig(features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    >>> bytes_of_canvas(network, (256, 256, 256), np.dtype(np.uint8)) // 10**6
    129
    """
    maps = MAPS_OF_A_FOV * model.features * math.prod(model.fov_size_zyx)
    return math.prod(shape_zyx) * (min(dtype.itemsize, FLOAT_BYTES) + FLOAT_BYTES) + FLOAT_BYTES * maps


def fitting_on_host(free: int, shape_zyx: ZYX, num_readers: int) -> int:
    """Return for how many canvases the host has memory: segmentations and claims stay there, seeds are found there.

    Examples
    --------
    >>> [fitting_on_host(gb * 10**9, (256, 256, 256), num_readers=8) for gb in (8, 16, 32, 128)]
    [5, 32, 86, 411]
    """
    voxels = math.prod(shape_zyx)
    left = int(USABLE * free) - HOST_BASE - num_readers * SEEDING_BYTES * voxels
    return max(0, left // (HOST_BYTES * voxels))


def num_canvases(
    wanted: int | None, num_jobs: int, shape_zyx: ZYX, each: int, free: int, on_host: int | None = None
) -> int:
    """Return how many canvases to put on a device: `wanted`, or as many as fit, and never more than jobs.

    `each` is what `bytes_of_canvas` returned, `free` what `free_bytes` did; `on_host` is of `fitting_on_host`, if the
    device has its own memory.
    """
    on_device = int(USABLE * free) // each
    fitting = on_device if on_host is None else min(on_device, max(1, on_host))
    number = min(num_jobs, wanted or max(1, min(MOST_CANVASES, fitting)))
    if number > fitting:
        size = "×".join(map(str, shape_zyx))
        remedy = f"Choose {fitting} or auto" if fitting else "Choose smaller subvolumes or windows"
        found = (
            f"need {number * each / 1e6:,.0f} MB, the device has {USABLE * free / 1e6:,.0f} MB for them"
            if number > on_device
            else f"need more memory than this machine has besides its GPU, which is enough for {fitting}"
        )
        raise ConfigError(f"canvases: {number} of {size} voxels {found}. {remedy}")
    return number
