"""Settings of the export and of the viewer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from ffn.config import NonNegativeInt, PathText, SameResult, Section


class ExportConfig(Section):
    """Neuroglancer precomputed volumes, meshes and skeletons."""

    swc: bool = Field(False, description="write skeletons also as SWC files, for navis and other programs")
    image_encoding: Literal["jpeg", "png"] = Field(
        "jpeg", description="encoding of image chunks; png is lossless; 16-bit images are always lossless"
    )
    mesh_mip: NonNegativeInt = Field(
        1, description="mip that meshes and skeletons are made from; the coarsest if there are fewer"
    )
    min_mesh_voxels: PositiveInt = Field(
        500, description="smaller segments get no mesh and no skeleton, voxels at mip 0"
    )
    threads: SameResult[NonNegativeInt] = Field(
        0, description="shards written in parallel, 300 MB each; 0 uses the job's share of the cores"
    )


class ViewConfig(Section):
    """The Neuroglancer viewer."""

    volume: str | None = Field(None, description="volume of a run; null if it has only one")
    segments: tuple[Annotated[int, Field(gt=0, lt=2**64)], ...] = Field(
        (), description="ids to select; empty selects the largest"
    )
    link: str | None = Field(None, description="link of the export to open, such as split-01; null shows everything")
    data_url: str | None = Field(
        None, description="URL where another server serves the export's folder; null serves it from here"
    )
    layout: Literal["4panel", "3d", "xy", "xz", "yz", "xy-3d", "xz-3d", "yz-3d"] = Field(
        "4panel", description="panels to show"
    )
    size: tuple[Annotated[int, Field(ge=64, le=8192)], Annotated[int, Field(ge=64, le=8192)]] = Field(
        (1400, 900), description="width and height of a screenshot, pixels"
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(0, description="port of the viewer; 0 chooses a free one")
    open: bool = Field(True, description="open the link in a browser if there is a screen")
    corrections: PathText | None = Field(
        None, description="CSV file of corrections: show its lines, and save the ones that are drawn"
    )
    queue: tuple[PathText, ...] = Field(
        (),
        description="CSV files of corrections: ask the questions of ffn queue one by one, append the answers to the "
        "first file, and count those of all",
    )
