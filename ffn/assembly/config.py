"""Options of the stages that make one segmentation of the subvolumes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from ffn.config import FloodConfig, Fraction, ModelConfig, PositiveZYX, Probability, Section
from ffn.errors import ConfigError
from ffn.geometry import ZYX


class ReconcileConfig(Section):
    """Joining overlapping subvolumes into one volume with global ids."""

    min_overlap_fraction: Fraction = Field(
        0.5, description="share of both segments' voxels that a match must have, where both subvolumes are segmented"
    )
    min_overlap_voxels: PositiveInt = Field(
        1000, description="voxels in common that join two ids; for thin segments half of their voxels in the overlap"
    )
    min_component_um3: PositiveFloat = Field(
        0.001, description="an object's connected components become segments; smaller ones become background, µm³"
    )


class ConsensusConfig(Section):
    """Consensus of two segmentations that differ in the order of their seeds; it splits wherever they disagree."""

    for_workflow = frozenset({"enabled"})

    enabled: bool = Field(
        False, description="segment everything twice, with seeds forward and reversed, and continue with the consensus"
    )
    min_fragment_um3: PositiveFloat = Field(0.001, description="smaller fragments become background, µm³")


JOB_SIZE = Field((512, 512, 512), description="size of one job's box, voxels")


class AgglomerateJobs(Section):
    """How a box is divided into the jobs of agglomeration, which do not overlap."""

    job_size_zyx: PositiveZYX = JOB_SIZE


class AgglomerateConfig(Section):
    """Scores of the contacts between supervoxels, from growing both sides again. Flood filling is as in `segment`."""

    for_workflow = frozenset({"enabled", "job_size_zyx"})

    enabled: bool = Field(False, description="whether the workflow agglomerates")
    min_overlap_voxels: PositiveInt = Field(
        200,
        description="a contact is scored only where both segments claimed at least this many common voxels in flooding",
    )
    min_overlap_depth: Annotated[float, Field(ge=0)] = Field(
        1.0,
        description="least number of these per contact face there; with fewer, only the place of the border is unclear",
    )
    window_radius_zyx: PositiveZYX = Field(
        (40, 40, 40),
        description="half-size of the window that both sides grow in, at least FOV radius + deltas, voxels",
    )
    max_fovs: PositiveInt | None = Field(200, description="most network evaluations for one side; null: no limit")
    min_recovered: Fraction = Field(
        0.2, description="each side must recover this share of its own segment, or the score is nan: no answer"
    )
    min_crossing: Fraction = Field(
        0.3,
        description="share of what the other side recovers of itself that a side must enter; with less, the score "
        "falls: to 0.6 of it if only one side enters, to 0 if neither does",
    )
    max_deleted: Fraction = Field(
        0.1, description="largest share of its object that a side may lose again while it grows, or the score is nan"
    )
    job_size_zyx: PositiveZYX = JOB_SIZE


class Agglomeration(FloodConfig, AgglomerateConfig):
    """Options of one call of agglomeration: its own and those of flood filling."""

    @classmethod
    def of(cls, config: AgglomerateConfig, flood: FloodConfig) -> Agglomeration:
        """Return the options of a run, from its sections."""
        return cls(**{name: getattr(flood, name) for name in FloodConfig.model_fields}, **dict(config))


# Options of agglomeration that a cut does not need.
OF_CONTACTS = ("min_overlap_voxels", "min_overlap_depth", "min_recovered", "min_crossing", "max_deleted", "canvases")


def require_window(radius_zyx: ZYX, model: ModelConfig, key: str) -> None:
    """Check that a window around a contact lets the FOV make a move in every direction."""
    for axis, radius, fov, delta in zip("zyx", radius_zyx, model.fov_radius_zyx, model.deltas_zyx, strict=True):
        if radius < fov + delta:
            found = f"{key}: {radius} on axis {axis} is less than FOV radius + deltas ({fov + delta})"
            raise ConfigError(f"{found}, so no object could grow from one segment into another")


class MergeConfig(Section):
    """Joining the supervoxels whose edges in the agglomeration graph reach a threshold."""

    threshold: Probability = Field(0.7, description="lowest score, as the mean between two groups, that joins them")


class FillConfig(Section):
    """Giving unsegmented voxels to the segments around them, or to new ones where bodies have none.

    The workflow leaves it out if max_distance_nm is 0 and there are no affinities.
    """

    max_distance_nm: Annotated[float, Field(ge=0)] = Field(
        0.0, description="largest distance from a segment, nm; 0 fills nothing"
    )
    sigma_nm: Annotated[float, Field(ge=0)] = Field(3.0, description="standard deviation of the image's smoothing, nm")
    min_affinity: Probability = Field(
        0.35, description="with affinities: lowest mean between two groups that joins them; large ones need more"
    )
    # Far from a segment, floods know only their block and its surroundings, so this one may show.
    block_size_zyx: PositiveZYX = Field((256, 256, 256), description="voxels filled at a time")
