"""Configuration of synthetic volumes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator

from ffn.config import PositiveVoxelSize, Section

Length = Annotated[int, Field(ge=16)]


class SynthConfig(Section):
    """A synthetic EM volume, whose anatomy and imaging imitate FIB-25.

    Lengths are in nm, so that the same tissue can be imaged with any voxel size.
    """

    shape_zyx: tuple[Length, Length, Length] = Field((160, 128, 128), description="size of the volume, voxels")
    voxel_size_zyx_nm: PositiveVoxelSize = Field((10.0, 10.0, 10.0), description="edge lengths of a voxel, nm")
    neurite_radius_nm: tuple[PositiveFloat, PositiveFloat] = Field(
        (40.0, 110.0), description="radius of the thinnest and of the thickest neurite, log-uniform between, nm"
    )

    @model_validator(mode="after")
    def _ranges_ascend(self) -> SynthConfig:
        low, high = self.neurite_radius_nm
        if low > high:
            raise ValueError(f"neurite_radius_nm: {low} {high}, expected the lower value first")
        return self
