"""The evidence that two segments are one object, from the objects that both have grown to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.config import AgglomerateConfig

ONE_SIDED = 0.6  # our choice: a threshold above it needs both sides
OPEN = 0.7  # default of merge.threshold; to judge again is to grow both sides in small steps


@dataclass(frozen=True)
class Evidence:
    """Result of growing both sides of a contact. All counts and shares are of voxels inside the window."""

    voxels_a: int  # size of each segment
    voxels_b: int
    radius_a: float  # largest distance of a voxel of the segment from its surface, in smallest voxel sides
    radius_b: float
    tries_a: int  # seeds tried; 0 if no voxel of the side can be a seed, or the score was 0 without it
    tries_b: int
    fovs_a: int  # network evaluations from the seed that counts
    fovs_b: int
    recovered_aa: float  # share of each segment that its own object covers again
    recovered_ab: float  # share of b that the object grown from a covers
    recovered_ba: float
    recovered_bb: float
    agreement: float  # voxels in both objects, as a share of the smaller object
    iou: float  # voxels in both objects, as a share of the voxels in either
    deleted_a: float  # share of the object that it lost again as it grew (POM from 0.8 or more to less than 0.5)
    deleted_b: float
    lost: float  # share of both segments that neither object covers

    def score(self, config: AgglomerateConfig) -> float:
        """Return how much the two sides agree.

        The agreement, or `ONE_SIDED` of it if only one side grew into the other. 0 if neither did, or if a side did not
        recover itself or lost too much of its object.
        """
        crossing = sorted((self.recovered_ab, self.recovered_ba))
        own = min(self.recovered_aa, self.recovered_bb)
        steady = max(self.deleted_a, self.deleted_b) <= config.max_deleted
        if own < config.min_recovered or crossing[1] < config.min_crossing or not steady:
            return 0.0
        return self.agreement if crossing[0] >= config.min_crossing else ONE_SIDED * self.agreement

    def is_open(self, config: AgglomerateConfig) -> bool:
        """Whether only one side entered the other, and the default of `merge.threshold` would join them if both did."""
        entered = min(self.recovered_ab, self.recovered_ba)
        return self.score(config) > 0 and entered < config.min_crossing and self.agreement >= OPEN


@dataclass(frozen=True)
class Grown:
    """The object that one side of a contact has grown to."""

    mask: np.ndarray  # the object in the window; empty if the seed did not survive
    num_fovs: int = 0  # as in `Evidence`
    num_tries: int = 0
    num_deleted: int = 0  # as in `ffn.inference.canvas.Canvas`

    @property
    def deleted(self) -> float:
        """Voxels lost again, as a share of the object."""
        return self.num_deleted / max(1, int(np.count_nonzero(self.mask)), self.num_deleted)

    def is_sound(self, side: np.ndarray, config: AgglomerateConfig) -> bool:
        """Whether the object recovers the segment that it was grown from, and lost little; else the score is 0."""
        return share_of(self.mask, side) >= config.min_recovered and self.deleted <= config.max_deleted


def compare(sides: list[np.ndarray], grown: list[Grown], radii: Sequence[float]) -> Evidence:
    """Compare the objects grown from both sides with the segments and with each other."""
    (a, b), (grown_a, grown_b) = sides, (g.mask for g in grown)
    both, either = np.count_nonzero(grown_a & grown_b), np.count_nonzero(grown_a | grown_b)
    smaller = min(np.count_nonzero(grown_a), np.count_nonzero(grown_b))
    return Evidence(
        voxels_a=int(np.count_nonzero(a)),
        voxels_b=int(np.count_nonzero(b)),
        radius_a=radii[0],
        radius_b=radii[1],
        tries_a=grown[0].num_tries,
        tries_b=grown[1].num_tries,
        fovs_a=grown[0].num_fovs,
        fovs_b=grown[1].num_fovs,
        recovered_aa=share_of(grown_a, a),
        recovered_ab=share_of(grown_a, b),
        recovered_ba=share_of(grown_b, a),
        recovered_bb=share_of(grown_b, b),
        agreement=both / smaller if smaller else 0.0,
        iou=both / either if either else 0.0,
        deleted_a=grown[0].deleted,
        deleted_b=grown[1].deleted,
        lost=1 - share_of(grown_a | grown_b, a | b),
    )


def share_of(of: np.ndarray, whole: np.ndarray) -> float:
    """Return the share of `whole` that `of` covers; both are bool arrays of one shape."""
    total = np.count_nonzero(whole)
    return float(np.count_nonzero(of & whole) / total) if total else 0.0
