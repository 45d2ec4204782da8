"""How the source of a volume is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ffn.config import NonNegativeInt, PositiveVoxelSize, Section


class SourceConfig(Section):
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
        description="labels that are neither trained on nor scored; negative ones are also counted down from 2^64",
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
        None,
        description="place of the first voxel in the full volume, voxels of the source; null takes the source's",
    )
