"""How long training and flood filling take on a machine: within a factor of two where we measured it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ffn import kernels
from ffn.config import ModelConfig, SegmentConfig
from ffn.inference.choice import FEW_FEATURES
from ffn.kernels.inference import obstacle
from ffn.machine.core_speed import core_flops
from ffn.machine.description import Machine, this_machine
from ffn.training.config import TrainConfig
from ffn.workflow.needs import BACKWARD, FOVS_PER_DELTAS, fov_flops
from ffn.workflow.run import RunConfig

EFFICIENCY = 0.85  # of the network's convolutions in float32: share of the speed of matrix products; 1 on an AMD EPYC
# Operations per second in bfloat16 with AMX for one in float32, on two cores of a Xeon: 0.3 TFLOP/s in float32,
# 1.5-2.4 in inference, 0.9-1.4 in training.
AMX_INFERENCE = 6
AMX_TRAINING = 4
# In float32, speed of our kernels, which multiply less, for one of convolutions that do not, on an AMD EPYC with AVX2
# and a Xeon with AVX-512; with AVX2 that of TensorFlow's training, whose weight gradients are slow there, and of JAX's,
# which was 0.6 to 1.8 times as fast as TensorFlow's.
KERNELS_INFERENCE = 2.4
KERNELS_TRAINING = 2.2
LIBRARY_TRAINING_AVX2 = 0.3
SECONDS_PER_FOV = 0.002  # outside the network, in each job; 1.5-2.2 ms on a Xeon
START_SECONDS = 15  # until a job has loaded TensorFlow or OpenVINO


@dataclass(frozen=True)
class Pace:
    """How fast a machine computes.

    Parameters
    ----------
    flops : float
        Operations per second in float32, on all cores.
    cores : int
        Cores that jobs share.
    units : str
        Its vector units, see `ffn.machine.description.UNITS`.
    """

    flops: float
    cores: int
    units: str = ""

    def training_rate(self, model: ModelConfig, train: TrainConfig) -> float:
        """FOVs/s of a training, all processes together."""
        speed_up: float = LIBRARY_TRAINING_AVX2 if self.units == "AVX2" else 1
        if self.units == "AMX" and train.precision != "float32" and train.engine != "jax":
            speed_up = AMX_TRAINING
        elif self.units and _trains_with_kernels(model, train):
            speed_up = KERNELS_TRAINING
        return self._rate(BACKWARD * fov_flops(model) / speed_up, train.num_workers)

    def flooding_rate(self, model: ModelConfig, segment: SegmentConfig, jobs: int) -> float:
        """FOVs/s of flood filling, all jobs together."""
        speed_up: float = AMX_INFERENCE if self._floods_by_amx(segment) else 1
        if self._floods_with_kernels(model, segment):
            speed_up = KERNELS_INFERENCE
        return self._rate(fov_flops(model) / speed_up, jobs)

    def seconds(self, fovs: float, rate: float, jobs: int) -> float:
        """Time of jobs that make so many FOVs together, as many jobs at once as there are cores."""
        return START_SECONDS * math.ceil(jobs / self.cores) + fovs / rate

    def _floods_with_kernels(self, model: ModelConfig, segment: SegmentConfig) -> bool:
        in_float32 = segment.precision != "bfloat16" and not self._floods_by_amx(segment)
        by_auto = segment.engine == "auto" and in_float32 and model.features >= FEW_FEATURES
        return bool(self.units) and (by_auto or segment.engine == "kernels") and not obstacle(model.features)

    def _floods_by_amx(self, segment: SegmentConfig) -> bool:
        return self.units == "AMX" and segment.precision != "float32"

    def _rate(self, flops_of_one: float, jobs: int) -> float:
        return 1 / (flops_of_one / self.flops + SECONDS_PER_FOV / min(jobs, self.cores))


def _trains_with_kernels(model: ModelConfig, train: TrainConfig) -> bool:
    reason = kernels.unfit("float32", model.features) or kernels.not_built(kernels.library_path())
    return train.precision != "bfloat16" and train.engine != "jax" and not reason


def training_fovs(train: TrainConfig) -> int:
    """FOVs of a training: each lane moves its FOV once in a step."""
    return train.max_steps * train.num_lanes


def flooding_fovs(model: ModelConfig, voxels: Sequence[int]) -> float:
    """FOVs of flood filling, about; `voxels` has the size of each job's box."""
    return FOVS_PER_DELTAS * sum(voxels) / math.prod(model.deltas_zyx)


def pace_of(machine: Machine, cores: int | None = None) -> Pace:
    """Measure the pace of this machine when nothing else runs, with some of its cores or all."""
    used = min(cores or machine.cores, machine.cores)
    return Pace(core_flops() * EFFICIENCY * min(used, machine.quota), used, machine.units)


def describe_pace(pace: Pace) -> str:
    """Say how fast a machine is with the default network."""
    model, train, segment = ModelConfig(), TrainConfig(), SegmentConfig()
    rates = pace.training_rate(model, train), pace.flooding_rate(model, segment, pace.cores)
    size = "×".join(map(str, model.fov_size_zyx))
    return (
        f"about {rates[0]:.2g} FOVs/s in training and {rates[1]:.2g} in flood filling, "
        f"with the default network (depth {model.depth}, FOV {size}) and nothing else running"
    )


def times(run: RunConfig, pace: Pace, trains: bool, voxels: Sequence[int]) -> list[str]:
    """Say how long a run takes.

    Parameters
    ----------
    run : RunConfig
        The configuration.
    pace : Pace
        Of the machine.
    trains : bool
        Whether it has to train.
    voxels : sequence of int
        Sizes of the boxes that are still to be flood-filled.

    Returns
    -------
    list of str
        A line for training and one for flood filling, or none.
    """
    found = []
    if trains:
        fovs, rate = training_fovs(run.train), pace.training_rate(run.model, run.train)
        found.append(f"training: {fovs:,} FOVs, {duration(pace.seconds(fovs, rate, run.train.num_workers))}")
    if voxels:
        guess, rate = flooding_fovs(run.flooding_model, voxels), pace.flooding_rate(run.model, run.segment, len(voxels))
        seconds = pace.seconds(guess, rate, len(voxels))
        found.append(f"flood filling: about {float(f'{guess:.2g}'):,.0f} FOVs, {duration(seconds)}")
    return found


def announcement(run: RunConfig, trains: bool, voxels: Sequence[int], cores: int | None) -> list[str]:
    """Say at the start of a run what this machine is, and how long the run takes on it.

    Parameters
    ----------
    run : RunConfig
        The configuration.
    trains : bool
        Whether it has to train.
    voxels : sequence of int
        Sizes of the boxes that are still to be flood-filled.
    cores : int or None
        Cores that the run may use; None if its jobs run on other machines.

    Returns
    -------
    list of str
        Lines; none if it neither trains nor floods.
    """
    if not trains and not voxels:
        return []
    machine = this_machine()
    expected = "; ".join(times(run, pace_of(machine, cores), trains, voxels))
    if machine.cards:
        expected += " without its GPU, less with it"
    found = [f"This machine: {machine.title}"]
    if cores is None:
        return [
            *found,
            f"On one like it: {expected}",
            "The jobs run on other nodes, which differ. What they are: ffn doctor --profile PROFILE --submit",
        ]
    return [*found, f"With nothing else running: {expected}. What makes it slow: ffn doctor"]


def duration(seconds: float) -> str:
    """Return a time in words that promise no more than is known.

    Examples
    --------
    >>> [duration(seconds) for seconds in (20, 500, 9700, 400_000)]
    ['less than a minute', 'about 8 min', 'about 2.7 hours', 'about 4.6 days']
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 1.5 * 3600:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} hours" if seconds < 36 * 3600 else f"about {seconds / 86400:.1f} days"
