"""Settings of the export and of the viewer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ffn.config import NonNegativeInt, Section


class ExportConfig(Section):
    """Neuroglancer precomputed volumes."""

    image_encoding: Literal["jpeg", "png"] = Field(
        "jpeg", description="of the image chunks; png is lossless, as 16 bits always are"
    )
    mesh_mip: NonNegativeInt = Field(
        1, description="mip that meshes are made of; the coarsest one where there are fewer"
    )
    skeleton_mip: NonNegativeInt | None = Field(
        1, description="mip that skeletons are made of, the coarsest one where there are fewer; null makes none"
    )
    min_mesh_voxels: PositiveInt = Field(
        500, description="smaller segments get no mesh and no skeleton, voxels at mip 0"
    )
    max_points: PositiveInt = Field(100_000, description="training coordinates shown; of more, an even selection")
    num_links: NonNegativeInt = Field(10, description="worst splits, and worst merges, that get a link each")
    threads: NonNegativeInt = Field(
        0, description="shards written side by side, 300 MB each; 0 takes the job's share of the cores"
    )


class ViewConfig(Section):
    """The Neuroglancer viewer."""

    volume: str | None = Field(None, description="which volume of a run; null where it has only one")
    segments: tuple[Annotated[int, Field(gt=0, lt=2**64)], ...] = Field(
        (), description="ids to select; empty takes the largest"
    )
    link: str | None = Field(None, description="link of the export to open, such as split-01; null shows everything")
    data_url: str | None = Field(
        None, description="address at which another server has the export's folder; null serves it here"
    )
    layout: Literal["4panel", "3d", "xy", "xz", "yz", "xy-3d", "xz-3d", "yz-3d"] = Field(
        "4panel", description="panels to show"
    )
    size: tuple[Annotated[int, Field(ge=64, le=8192)], Annotated[int, Field(ge=64, le=8192)]] = Field(
        (1400, 900), description="width and height of a screenshot, pixels"
    )
    port: Annotated[int, Field(ge=0, lt=65535)] = Field(
        0, description="of the link, the data is on the next one; 0 takes free ones"
    )
    open: bool = Field(True, description="open the link in a browser, where there is a screen")
