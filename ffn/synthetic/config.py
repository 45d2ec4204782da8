"""Configuration of synthetic volumes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from ffn.config import Fraction, PositiveVoxelSize, Section

Length = Annotated[int, Field(ge=16)]
Grey = Annotated[float, Field(gt=0, le=255)]
Range = tuple[PositiveFloat, PositiveFloat]


class SynthConfig(Section):
    """Anatomy and imaging of a synthetic EM volume; the defaults imitate FIB-25.

    Lengths are in nm, so that the same tissue can be imaged with any voxel size.
    """

    shape_zyx: tuple[Length, Length, Length] = Field((160, 128, 128), description="size of the volume, voxels")
    voxel_size_zyx_nm: PositiveVoxelSize = Field((10.0, 10.0, 10.0), description="edge lengths of a voxel, nm")

    neurite_radius_nm: Range = Field(
        (40.0, 110.0), description="radius of the thinnest and of the thickest neurite, log-uniform between, nm"
    )
    tortuosity: Fraction = Field(0.25, description="how much a neurite may turn per step; 0: straight")
    varicosity: Fraction = Field(0.25, description="relative variation of the calibre along a neurite")
    branch_spacing_nm: PositiveFloat = Field(700.0, description="mean distance between two branch points, nm")
    undulation_nm: NonNegativeFloat = Field(10.0, description="amplitude of the membranes' undulation, nm")
    min_neurite_nm: NonNegativeFloat = Field(500.0, description="neurites shorter than this are left out, nm")
    min_neurite_voxels: PositiveInt = Field(
        500, description="smaller connected pieces become part of their neighbours, voxels"
    )

    cytoplasm_grey: Grey = Field(152.0, description="mean grey level of cytoplasm")
    membrane_grey: Grey = Field(78.0, description="grey level of the core of a membrane")
    neurite_contrast: NonNegativeFloat = Field(
        12.0, description="standard deviation of the mean grey level of neurites"
    )
    grain_contrast: NonNegativeFloat = Field(
        12.0, description="standard deviation of the grain inside neurites, grey levels"
    )
    shading_contrast: NonNegativeFloat = Field(
        4.0, description="standard deviation of the slow change of brightness, grey levels"
    )

    membrane_nm: PositiveFloat = Field(30.0, description="thickness of the dark line between two neurites, nm")
    weak_spots_per_um3: NonNegativeFloat = Field(100.0, description="patches where a membrane fades, per µm³ of tissue")
    weak_spot_fading: Fraction = Field(0.9, description="share of the contrast of the membrane that a weak spot lacks")

    mitochondria_per_um3: NonNegativeFloat = Field(12.0, description="mitochondria per µm³ of tissue")
    vesicle_clusters_per_um3: NonNegativeFloat = Field(14.0, description="clusters of vesicles per µm³ of tissue")
    blur_nm: NonNegativeFloat = Field(7.0, description="standard deviation of the point spread function, nm")
    noise: NonNegativeFloat = Field(7.0, description="standard deviation of the noise in cytoplasm, grey levels")
    defect_position: Fraction | None = Field(
        0.3, description="position of the defective section along z, from 0 to 1; null: none"
    )
    defect_contrast: Fraction = Field(0.3, description="share of its contrast that the defective section keeps")

    @model_validator(mode="after")
    def _ranges_ascend(self) -> SynthConfig:
        low, high = self.neurite_radius_nm
        if low > high:
            raise ValueError(f"neurite_radius_nm: {low} {high}, expected the lower value first")
        return self
