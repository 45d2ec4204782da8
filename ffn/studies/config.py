"""The options of the studies: type, range, unit, default, meaning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ffn.config import Fraction, Section

AscendingCounts = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]


class StudyConfig(Section):
    """Studies of distributed training; everything else is trained as section `train` says."""

    workers: AscendingCounts = Field(
        (1, 2, 4, 8, 16), description="numbers of workers that are compared, each with one FOV per step"
    )
    learning_rates: Annotated[tuple[PositiveFloat, ...], Field(min_length=3)] = Field(
        (1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3), description="rates tried with each number of workers, ascending"
    )
    steps: PositiveInt = Field(
        2000, description="optimizer steps of each training run, at whose end scores are compared"
    )
    log_steps: PositiveInt = Field(25, description="steps between the scores that are smoothed")
    smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.9, description="weight of the past in the moving average of the scores; the paper's is 0.9"
    )
    grid_seeds: PositiveInt = Field(1, description="training runs of each number of workers and rate, averaged")
    seeds: Annotated[int, Field(ge=2)] = Field(
        3, description="training runs at the best rate of each number of workers, for mean and deviation"
    )
    score: Literal["accuracy", "f1"] = Field("accuracy", description="what decides which rate is best")
    depth: PositiveInt | None = Field(
        3, description="input module + residual modules of the network that is trained; null: that of model"
    )
    features: PositiveInt | None = Field(8, description="feature maps of every convolution; null: those of model")
    f1_targets: Annotated[tuple[OpenFraction, ...], Field(min_length=1)] = Field(
        (0.15, 0.35), description="smoothed F1 whose cost is compared"
    )

    processes: AscendingCounts = Field((1, 2), description="real processes whose step times are measured")
    measured_steps: Annotated[int, Field(ge=20)] = Field(
        300, description="training steps measured with each number of processes"
    )
    max_nodes: Annotated[int, Field(ge=2)] = Field(2048, description="up to which the scaling model is evaluated")
    network: Literal["measured", "aries", "slingshot", "ethernet"] = Field(
        "slingshot", description="between the nodes of the scaling model; measured: as between the processes here"
    )
    backup_workers: PositiveInt = Field(
        8, description="slowest workers not waited for, at most, in the what-if of that name"
    )
    straggler_rate: Fraction = Field(
        0.001, description="share of the steps of a node that are slowed down, in the what-if of that name"
    )
    straggler_slowdown: Annotated[float, Field(ge=1)] = Field(3.0, description="by this factor")

    @model_validator(mode="after")
    def _ascending(self) -> StudyConfig:
        for name in ("workers", "learning_rates", "processes"):
            values = getattr(self, name)
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name}: {values} must ascend")
        return self

    @model_validator(mode="after")
    def _model_covers_the_workers(self) -> StudyConfig:
        if self.workers[-1] > self.max_nodes:
            raise ValueError(f"max_nodes: {self.max_nodes} is less than the most workers ({self.workers[-1]})")
        return self

    @model_validator(mode="after")
    def _seeds_contain_the_grid(self) -> StudyConfig:
        if self.grid_seeds > self.seeds:
            raise ValueError(f"grid_seeds: {self.grid_seeds} is more than seeds ({self.seeds}), which contain them")
        return self
