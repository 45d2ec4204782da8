"""Settings of the evaluation: skeletons, scores, the choice of a checkpoint, the sweep of merge thresholds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from ffn.config import BoxText, NonNegativeInt, Probability, Section


class SkeletonizeConfig(Section):
    """Skeletons of the ground truth, for the expected run length. With spacing 0 the workflow makes none."""

    spacing_nm: Annotated[float, Field(ge=0)] = Field(
        40.0, description="spacing of the voxels that skeletons are computed from, nm; 0 makes no skeletons"
    )
    min_voxels: PositiveInt = Field(1000, description="connected pieces with fewer voxels get no skeleton")


class EvaluateConfig(Section):
    """Scores against the ground truth, and those of a watershed baseline."""

    watershed: bool = Field(True, description="also score a baseline: the best of several watersheds of the image")
    watershed_max_voxels: PositiveInt = Field(
        2_000_000, description="in a larger box, the 36 watersheds cover only the middle; a minute of a core by default"
    )


class SelectConfig(Section):
    """Choice among the last checkpoints by the VOI of a validation box, which must not be reported on."""

    checkpoints: NonNegativeInt = Field(
        0,
        description="number of last checkpoints to compare; with init, its weights compete as step 0; 0 takes the "
        "last one",
    )
    volume: str | None = Field(None, description="volume of the validation box; null if there is only one")
    box: BoxText | None = Field(
        None, description="validation box: must have labels and overlap no evaluate_box; FOVs also see voxels around it"
    )

    @model_validator(mode="after")
    def _box_is_given(self) -> SelectConfig:
        if self.checkpoints and self.box in (None, "all", "none"):
            raise ValueError(f"box: {self.box} with checkpoints: {self.checkpoints}, expected z0:z1,y0:y1,x0:x1")
        return self


class SweepConfig(Section):
    """Scores of an agglomeration graph at several thresholds."""

    thresholds: tuple[Probability, ...] = Field(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), description="thresholds to score, besides no merging"
    )
