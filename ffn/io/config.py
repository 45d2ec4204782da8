"""How the source of a volume is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from ffn.config import NonNegativeInt, PositiveVoxelSize, Section


class FoundConfig(Section):
    """What a source may hold that is read only if its user says how: these refuse it otherwise."""

    intensity_range: tuple[float, float] | None = Field(
        None,
        description="grey levels of an image that become 0 and 255 of 8 bits, those beyond are cut: needed for floats "
        "and integers wider than 16 bits, any other image can have it, too",
    )
    missing_sections: Literal["refuse", "blank"] = Field(
        "refuse",
        description="blank reads 0 where a number is missing in a series of slices, and lists these sections beside "
        "the volume",
    )
    unequal_sections: Literal["refuse", "pad"] = Field(
        "refuse",
        description="pad reads 0 beyond the end of slices that are smaller than the others, along y and x, and lists "
        "them beside the volume",
    )

    @field_validator("intensity_range")
    @classmethod
    def _rises(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value and not value[0] < value[1]:
            raise ValueError(f"found {value}, expected the lower level first")
        return value


class SourceConfig(FoundConfig):
    """How a source is read, both as a volume of a run and by `ffn ingest`."""

    voxel_size_zyx_nm: PositiveVoxelSize | None = Field(
        None, description="edge lengths of a voxel, nm; null takes the source's; of several mips, chooses one"
    )
    mip: NonNegativeInt | None = Field(
        None,
        description="resolution, 0 is the full one; boxes are in its voxels; a mip that the source lacks is made from "
        "its coarsest, whose size voxel_size_zyx_nm is then: each halves the axes whose voxels are shortest (mean of "
        "images, mode of labels); null takes voxel_size_zyx_nm",
    )
    ignore_labels: tuple[Annotated[int, Field(ge=-(2**63), lt=2**64)], ...] = Field(
        (-1, -2, -3),  # transparent, invalid and outside, as CREMI and Paintera write them
        description="labels neither trained on nor scored; negative ones also count down from 2^64 (uint32: 2^32)",
    )
    colour_ids: Literal["refuse", "rgb"] = Field(
        "refuse",
        description="labels whose colours stand for ids: rgb reads 65536 R + 256 G + B; a palette needs no option",
    )
    copy_image: Literal["auto", "always"] = Field(
        "auto",
        description="auto reads an image in small chunks on this machine where it is, and copies any other; labels, "
        "and images that are equalised, levelled, made coarser or signed, are always copied",
    )
    clahe_tile: Annotated[int, Field(ge=8)] | None = Field(
        None,
        description="equalise the histogram of each section (CLAHE) in tiles of this side, voxels; null leaves the "
        "image as it is",
    )
    level_sections: Literal["auto", "always", "never"] = Field(
        "auto",
        description="give every section of an image the median and interquartile range of the volume; auto where grey "
        "levels jump from one section to the next, with a warning, unless it is read where it is; clahe_tile does more",
    )
    max_shift: Annotated[float, Field(ge=2)] | None = Field(
        8.0,  # our choice: at 6 nm, sections of SNEMI3D (z < 32) are displaced by up to 8
        description="look for faults of sections in an image that is copied: dark and blurred ones, and displacements "
        "of more than this, pixels, across which no FOV sees; null looks for none",
    )


class IngestConfig(SourceConfig):
    """Facts about a source that its metadata may lack."""

    kind: Literal["auto", "image", "labels"] = Field(
        "auto", description="type of the voxels; auto takes integers wider than 16 bit for labels"
    )
    offset_zyx: tuple[int, int, int] | None = Field(
        None, description="place of the first voxel in the full volume, voxels of the source; null takes the source's"
    )
