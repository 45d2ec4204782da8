"""What the jobs of the stages need of a machine: memory and time, by measured factors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ffn.config import ModelConfig


@dataclass(frozen=True)
class Need:
    """Peak memory and time of one job, as measured on the demo and on FIB-25 with some room.

    Parameters
    ----------
    base_mb : int
        Memory whatever the size; TensorFlow or OpenVINO alone are 1-2 GB.
    bytes_per_voxel : float
        Memory for each voxel of what the stage holds at once.
    mb_per_thread : int
        Memory for each of its threads or processes.
    seconds_per_mvoxel : float
        Time of one core for 10⁶ voxels of the whole box.
    """

    base_mb: int
    bytes_per_voxel: float = 0
    mb_per_thread: int = 0
    seconds_per_mvoxel: float = 0


# Voxels: of the block where a stage works block by block, else of the box. Measured: FIB-25 (250³ in blocks of 128³)
# and the demo, `max_rss` and `s` in results/*/benchmarks.
NEEDS = {
    "ingest": Need(base_mb=1500, seconds_per_mvoxel=1),
    "synth": Need(base_mb=500, bytes_per_voxel=120, seconds_per_mvoxel=4),
    "membrane": Need(base_mb=300, bytes_per_voxel=150, seconds_per_mvoxel=1),
    "partition": Need(base_mb=300, mb_per_thread=250, seconds_per_mvoxel=1),
    "coordinates": Need(base_mb=300, bytes_per_voxel=60, seconds_per_mvoxel=0.5),
    "records": Need(base_mb=500, mb_per_thread=250, seconds_per_mvoxel=1),
    "import": Need(base_mb=1500),
    "select": Need(base_mb=500),
    "train": Need(base_mb=3000),  # 512 MB of volumes kept in memory included
    "segment": Need(base_mb=2500, bytes_per_voxel=60),
    "agglomerate": Need(base_mb=2500, bytes_per_voxel=60),
    "reconcile": Need(base_mb=700, bytes_per_voxel=60, seconds_per_mvoxel=0.5),
    "consensus": Need(base_mb=700, bytes_per_voxel=60, seconds_per_mvoxel=1),
    "merge": Need(base_mb=500, bytes_per_voxel=60, seconds_per_mvoxel=0.5),
    "fill": Need(base_mb=500, bytes_per_voxel=200, seconds_per_mvoxel=1),
    "sweep": Need(base_mb=500, bytes_per_voxel=60, seconds_per_mvoxel=1),
    "skeletonize": Need(base_mb=700, bytes_per_voxel=40, seconds_per_mvoxel=5),
    "evaluate": Need(base_mb=1000, bytes_per_voxel=100, seconds_per_mvoxel=6),  # the watershed's 90 included
    "export": Need(base_mb=1000, mb_per_thread=300, seconds_per_mvoxel=2),
    "report": Need(base_mb=1000),
}
BASE_MINUTES = 10  # start, imports, a slow file system
SAFETY = 4  # of the time: cores and file systems differ
FOVS_PER_DELTAS = 1.0  # FOVs for each box of `deltas_zyx` voxels; FIB-25: 0.84
FLOPS_PER_CORE = 5e10  # of a convolution in float32 on an old core; ours do 1.7e11, in bfloat16 with AMX 1e12


def memory_mb(stage: str, num_voxels: int = 0, threads: int = 1) -> int:
    """Memory of one job of a stage, MB.

    Parameters
    ----------
    stage : str
        Key of `NEEDS`.
    num_voxels : int
        What the job holds at once: a block, or its whole box.
    threads : int
        Threads or processes of the job.

    Examples
    --------
    >>> memory_mb("segment", 256**3)
    3507
    """
    need = NEEDS[stage]
    return math.ceil(need.base_mb + need.bytes_per_voxel * num_voxels / 1e6 + need.mb_per_thread * threads)


def minutes(stage: str, num_voxels: int, threads: int = 1) -> int:
    """Time of one job of a stage that runs no network, minutes.

    Parameters
    ----------
    stage : str
        Key of `NEEDS`.
    num_voxels : int
        Voxels of the whole box.
    threads : int
        Threads or processes that share the work.

    Examples
    --------
    >>> minutes("export", 1000**3)
    144
    """
    seconds = NEEDS[stage].seconds_per_mvoxel * num_voxels / 1e6 / threads
    return BASE_MINUTES + math.ceil(SAFETY * seconds / 60)


def flooding_minutes(num_voxels: int, model: ModelConfig, threads: int = 1) -> int:
    """Time of flood filling a box, minutes; of agglomerating it, too, which takes less.

    Parameters
    ----------
    num_voxels : int
        Voxels of the box.
    model : ModelConfig
        The network: its operations for a FOV, and the deltas between two of them.
    threads : int
        Threads of the job.

    Notes
    -----
    A killed job goes on from its checkpoint, so an estimate that is too small costs a retry, not the work.
    """
    fovs = FOVS_PER_DELTAS * num_voxels / math.prod(model.deltas_zyx)
    return BASE_MINUTES + math.ceil(fovs * fov_flops(model) / (FLOPS_PER_CORE * threads) / 60)


def fov_flops(model: ModelConfig) -> float:
    """Floating point operations of one evaluation of the network: its 3×3×3 convolutions, two for each module."""
    layer = 2 * 27 * model.features**2 * math.prod(model.fov_size_zyx)
    return float(2 * model.depth * layer)
