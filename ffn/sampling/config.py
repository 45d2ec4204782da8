"""Options of the stages that choose training examples."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ffn.config import Fraction, NonNegativeZYX, Section
from ffn.geometry import BLUR_NM

MEMBRANE_BLOCK_ZYX = (256, 256, 256)  # of membranes, which need a margin on all sides; our choice


class MembraneConfig(Section):
    """Detection of membranes: voxels whose Sobel gradient exceeds its own Gaussian blur."""

    blur_nm: PositiveFloat = Field(BLUR_NM, description="standard deviation of the adaptive threshold's blur, nm")


class PartitionConfig(Section):
    """Partitions of the labelled voxels by the active fraction of their local object mask (LOM)."""

    lom_radius_zyx: NonNegativeZYX = Field(
        (24, 24, 24), description="half-size of the LOM: FOV radius + deltas, voxels"
    )
    thresholds: tuple[Fraction, ...] = Field(
        (0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
        description="active fractions that separate partitions 1, 2, …; a fraction equal to one is above it",
    )
    min_label_um3: Annotated[float, Field(ge=0)] = Field(0.01, description="smaller labels are background, µm³")

    @model_validator(mode="after")
    def _ascending(self) -> PartitionConfig:
        if list(self.thresholds) != sorted(set(self.thresholds)) or not 0 < len(self.thresholds) < 254:
            raise ValueError(f"thresholds: {self.thresholds} must be 1 to 253 ascending fractions")
        return self


class CoordinatesConfig(Section):
    """Which voxels may be the centre of a training example."""

    margin_zyx: NonNegativeZYX = Field((24, 24, 24), description="distance from the border of the box, voxels")
    membrane_distance_nm: Annotated[float, Field(ge=0)] = Field(10.0, description="distance from the nearest edge, nm")
    include_background: bool = Field(
        False,
        description="whether partition 0 counts: its examples have no object, or one below the minimal size; "
        "google/ffn: true",
    )


class RecordsConfig(Section):
    """Sharded TFRecord files of training coordinates."""

    num_shards: PositiveInt = Field(16, description="number of files")
    max_records: PositiveInt | None = Field(
        200_000, description="most records; null repeats every partition up to the size of the largest one"
    )
