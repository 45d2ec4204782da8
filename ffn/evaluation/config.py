"""Settings of the evaluation: truth skeletons, scores, the choice of a checkpoint, the sweep over merge graphs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ffn.config import BoxText, NonNegativeInt, PositiveZYX, Probability, Section
from ffn.evaluation.metrics import RankingName


class SkeletonizeConfig(Section):
    """Skeletons of the truth, for the expected run length; the workflow makes none at spacing 0."""

    spacing_nm: Annotated[float, Field(ge=0)] = Field(
        40.0, description="distance of the voxels that skeletons are made of; less is slower; 0 makes none, nm"
    )
    min_voxels: PositiveInt = Field(1000, description="connected pieces with fewer voxels get no skeleton")
    invalidation_scale: PositiveFloat = Field(
        1.5, description="branches are longer than this times the local radius, plus the constant"
    )
    invalidation_const_nm: Annotated[float, Field(ge=0)] = Field(300.0, description="the constant, nm")


class EvaluateConfig(Section):
    """Scores against the truth, beside a watershed baseline."""

    block_size_zyx: PositiveZYX = Field((128, 128, 128), description="voxels compared at a time")
    border_nm: Annotated[float, Field(ge=0)] = Field(
        0.0, description="truth this close to another body in its section is ignored (convention cremi), nm"
    )
    erl_tolerance_nm: Annotated[float, Field(ge=0)] = Field(
        200.0, description="length of a second skeleton that makes a segment a merger in the tolerant run length, nm"
    )
    num_errors: NonNegativeInt = Field(20, description="splits, and mergers, that are listed with their places")
    watershed: bool = Field(True, description="score the best of a sweep of watersheds of the image beside it")
    watershed_max_voxels: PositiveInt = Field(
        20_000_000, description="a larger box gets watersheds of its middle only; each voxel takes 90 bytes"
    )


class SelectConfig(Section):
    """Choice among the last checkpoints by their scores on a validation box, which is never reported on."""

    checkpoints: NonNegativeInt = Field(0, description="how many of the last checkpoints compete; 0 takes the last one")
    volume: str | None = Field(None, description="volume of the validation box; null where there is only one")
    box: BoxText | None = Field(None, description="validation box: labelled, apart from every evaluate_box")
    metric: RankingName = Field("voi", description="the score that decides")
    convention: Literal["foreground", "all", "cremi"] = Field("all", description="the convention it is computed under")

    @model_validator(mode="after")
    def _box_is_given(self) -> SelectConfig:
        if self.checkpoints and self.box in (None, "all", "none"):
            raise ValueError(f"box: {self.box} with checkpoints: {self.checkpoints}, expected z0:z1,y0:y1,x0:x1")
        return self


class SweepConfig(Section):
    """Scores of a merge graph at many thresholds."""

    thresholds: tuple[Probability, ...] = Field(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), description="to look at, beside no merge at all"
    )
    block_size_zyx: PositiveZYX = Field((128, 128, 128), description="voxels compared at a time")
