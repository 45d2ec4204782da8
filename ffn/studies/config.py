"""The options of the studies: type, range, unit, default, meaning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, model_validator

from ffn.config import Fraction, Section


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if list(values) != sorted(set(values)):
        raise ValueError(f"{values} must ascend")
    return values


AscendingCounts = Annotated[tuple[PositiveInt, ...], Field(min_length=1), AfterValidator(_ascending)]
WARM_UP_STEPS = 20  # of a measurement, to compile and to fill caches; our choice, times are steady after 10
NUM_ROWS = 80  # of scores in a training run, before smoothing; our choice
OpenFraction = Annotated[float, Field(gt=0, lt=1)]


class RatesConfig(Section):
    """Study of the learning rate."""

    steps: PositiveInt = Field(2000, description="optimizer steps of each training run; scores are compared at the end")
    workers: AscendingCounts = Field(
        (1, 2, 4, 8, 16), description="numbers of workers to compare, with one FOV per worker and step"
    )
    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=3), AfterValidator(_ascending)] = Field(
        (1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3), description="rates to try with each number of workers, ascending"
    )


class CurvesConfig(Section):
    """Study of training curves, and of the cost of a score."""

    f1_targets: Annotated[tuple[OpenFraction, ...], Field(min_length=1)] = Field(
        (0.15, 0.35), description="smoothed F1 scores to reach; their costs are compared"
    )


class MeasureConfig(Section):
    """Measurement of step times."""

    measured_steps: Annotated[int, Field(ge=20)] = Field(
        300, description="training steps measured with each number of processes"
    )


class NetworkConfig(Section):
    """Network of a model."""

    network: Literal["aries", "slingshot", "ethernet"] = Field(
        "slingshot", description="between nodes in the scaling model and in virtual time"
    )


class ScalingConfig(NetworkConfig):
    """Study of the throughput."""

    max_nodes: Annotated[int, Field(ge=2)] = Field(2048, description="largest number of nodes in the scaling model")


class StalenessConfig(NetworkConfig):
    """Study of stale gradients and backup workers."""

    stragglers: Fraction = Field(
        0.02, description="share of gradients that take five times as long in the study of staleness, at random"
    )


class StudyConfig(ScalingConfig, StalenessConfig, MeasureConfig, CurvesConfig, RatesConfig):
    """Studies of distributed training; section `train` sets everything else."""

    seeds: Annotated[int, Field(ge=2)] = Field(
        3, description="training runs at the best rate of each number of workers, for mean and deviation"
    )
    depth: PositiveInt | None = Field(
        3, description="input module + residual modules of the trained network; null: as in model"
    )
    features: PositiveInt | None = Field(8, description="feature maps of every convolution; null: as in model")

    processes: AscendingCounts = Field((1, 2), description="numbers of real processes whose step times are measured")

    @model_validator(mode="after")
    def _model_covers_the_workers(self) -> StudyConfig:
        if self.workers[-1] > self.max_nodes:
            raise ValueError(f"max_nodes: {self.max_nodes} is less than the most workers ({self.workers[-1]})")
        return self
