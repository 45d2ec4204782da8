"""What jobs need: memory and time, from measured factors."""

from __future__ import annotations

import math

from ffn.config import ModelConfig
from ffn.workflow.stages import STAGES

BASE_MINUTES = 10  # start, imports, a slow file system
SAFETY = 4  # factor on the time: cores and file systems differ
FOVS_PER_DELTAS = 1.0  # FOVs per `deltas_zyx` box of voxels; FIB-25: 0.84
FLOPS_PER_CORE = 5e10  # of a convolution in float32 on an old core; ours do 1.7e11, in bfloat16 with AMX 1e12


def memory_mb(stage: str, num_voxels: int = 0, threads: int = 1) -> int:
    """Memory of one job of a stage, MB.

    Parameters
    ----------
    stage : str
        Key of `STAGES`.
    num_voxels : int
        Voxels that the job holds at once: a block, or its whole box.
    threads : int
        Threads or processes of the job.

    Examples
    --------
    >>> memory_mb("segment", 256**3)
    3507
    """
    need = STAGES[stage].need
    return math.ceil(need.base_mb + need.bytes_per_voxel * num_voxels / 1e6 + need.mb_per_thread * threads)


def minutes(stage: str, num_voxels: int, threads: int = 1) -> int:
    """Time of one job of a stage that runs no network, minutes.

    Parameters
    ----------
    stage : str
        Key of `STAGES`.
    num_voxels : int
        Voxels of the whole box.
    threads : int
        Threads or processes that share the work.

    Examples
    --------
    >>> minutes("export", 1000**3)
    144
    """
    seconds = STAGES[stage].need.seconds_per_mvoxel * num_voxels / 1e6 / threads
    return BASE_MINUTES + math.ceil(SAFETY * seconds / 60)


def flooding_minutes(num_voxels: int, model: ModelConfig, threads: int = 1) -> int:
    """Time of flood filling a box, minutes. Agglomeration takes less.

    Parameters
    ----------
    num_voxels : int
        Voxels of the box.
    model : ModelConfig
        The network: its operations per FOV, and its deltas.
    threads : int
        Threads of the job.

    Notes
    -----
    A killed job resumes from its checkpoint, so an estimate that is too small costs a retry, not the work.
    """
    fovs = FOVS_PER_DELTAS * num_voxels / math.prod(model.deltas_zyx)
    return BASE_MINUTES + math.ceil(fovs * fov_flops(model) / (FLOPS_PER_CORE * threads) / 60)


def fov_flops(model: ModelConfig) -> float:
    """Floating-point operations per FOV: the network's 3×3×3 convolutions, two per module."""
    layer = 2 * 27 * model.features**2 * math.prod(model.fov_size_zyx)
    return float(2 * model.depth * layer)
