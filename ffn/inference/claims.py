"""What grown objects become: segments, first come, first served, or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ffn.config import SegmentConfig
from ffn.geometry import ZYX, Box, zyx
from ffn.inference.canvas import MASKED, REJECTED, is_free
from ffn.inference.grower import Arrays
from ffn.inference.objects import GrownObject

COUNTERS = (
    *("fovs", "discarded_fovs", "seeds", "outside", "masked", "taken", "too_close"),
    *("weak", "too_small", "segments", "limited"),
)


@dataclass(frozen=True)
class Origin:
    """How an object came to be.

    Parameters
    ----------
    segment_id : int
        Id in the subvolume.
    seed_zyx : tuple of int
        Voxel of the subvolume where it started.
    num_fovs : int
        Network evaluations spent on it.
    overlaps : dict of int to int
        Voxels it claimed of objects that were there first, by their ids.
    pass_number : int
        1, or 2 for an object of the second pass.
    """

    segment_id: int
    seed_zyx: ZYX
    num_fovs: int
    overlaps: dict[int, int]
    pass_number: int = 1


@dataclass
class Filling:
    """Result of flood filling one subvolume.

    Parameters
    ----------
    segmentation : int32 ndarray of shape (Z, Y, X)
        Ids from 1; 0 where nothing was segmented.
    probability : uint8 ndarray of shape (Z, Y, X)
        POM of the object at its voxels, 1 … 255 for 0 … 1; 0 where nothing was segmented.
    origins : list of Origin
        One for each id, in order.
    counters : dict of str to int
        What happened to the seeds, and FOVs in all: those of the result, and those spent in vain on objects
        grown ahead of their turn.
    """

    segmentation: np.ndarray
    probability: np.ndarray
    origins: list[Origin] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class Claims:
    """The segmentation of a subvolume and the rules by which objects enter it, one after the other.

    Parameters
    ----------
    config : SegmentConfig
        Distances and sizes.
    reach : Box
        Where seeds may lie.
    segmentation : int32 ndarray of shape (Z, Y, X)
        0 free, `MASKED` never to be entered; changed in place.

    Attributes
    ----------
    probability : uint8 ndarray of shape (Z, Y, X)
        As in `Filling`.
    origins, counters
        As in `Filling`.
    num_filled : int
        Voxels claimed.
    """

    def __init__(self, config: SegmentConfig, reach: Box, segmentation: np.ndarray) -> None:
        self._distance = config.min_boundary_dist_zyx
        self.reach = reach
        self.segmentation = segmentation
        self.probability = np.zeros(segmentation.shape, np.uint8)
        self.origins: list[Origin] = []
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.num_filled = 0

    def objection(self, seed: ZYX) -> str | None:
        """Why no object may start here now: a counter's name, None where one may."""
        if not self.reach.contains(Box.around(seed)):
            return "outside"
        found = self.segmentation[seed]
        if found == MASKED:
            return "masked"
        if found > 0:
            return "taken"
        around = Box.around(seed, self._distance).intersect(Box.from_shape(zyx(self.segmentation.shape)))
        return "too_close" if (self.segmentation[around.slices()] > 0).any() else None

    def is_valid(self, seed: ZYX, evaluated: np.ndarray) -> bool:
        """Whether an object with these FOVs would grow the same way now.

        Voxels are only ever taken, never given back. So what the flood has refused it would refuse again, and all
        it takes is that the seed may start and that every voxel the FOV's centre has entered is still free.
        """
        z, y, x = evaluated.T
        return self.objection(seed) is None and bool(is_free(self.segmentation[z, y, x]).all())

    def refuse(self, seed: ZYX, objection: str) -> None:
        """Record a seed that may not start."""
        self.counters["seeds"] += 1
        self.counters[objection] += 1
        if objection == "too_close":
            self.segmentation[seed] = REJECTED

    def settle(self, grown: GrownObject, min_voxels: int, pass_number: int) -> bool:
        """Make an object a segment, or not, and record it; whether it has become one.

        Parameters
        ----------
        grown : GrownObject
            Grown in the present state of the segmentation, or valid in it.
        min_voxels : int
            Smallest segment; nothing that is already there is overwritten.
        pass_number : int
            For its origin.
        """
        outcome = self._claim(grown, min_voxels, pass_number) if grown.is_strong else "weak"
        if outcome != "segments":
            self.segmentation[grown.seed_zyx] = REJECTED
        self.counters["seeds"] += 1
        self.counters[outcome] += 1
        self.counters["fovs"] += grown.num_fovs
        self.counters["limited"] += grown.limited
        return outcome == "segments"

    def forget_rejections(self) -> None:
        """Free the seed voxels that gave nothing, for another pass."""
        self.segmentation[self.segmentation == REJECTED] = 0

    def filling(self) -> Filling:
        """Return the result so far."""
        return Filling(np.maximum(self.segmentation, 0), self.probability, self.origins, dict(self.counters))

    def _claim(self, grown: GrownObject, min_voxels: int, pass_number: int) -> str:
        labels = self.segmentation[grown.box.slices()]
        mask = (grown.probability > 0) & is_free(labels)
        num_voxels = int(np.count_nonzero(mask))
        if num_voxels < min_voxels:
            return "too_small"
        there = np.bincount(labels[(grown.probability > 0) & (labels > 0)])
        overlaps = {int(other): int(there[other]) for other in np.flatnonzero(there)}
        segment_id = len(self.origins) + 1
        labels[mask] = segment_id
        self.probability[grown.box.slices()][mask] = grown.probability[mask]
        self.origins.append(Origin(segment_id, grown.seed_zyx, grown.num_fovs, overlaps, pass_number))
        self.num_filled += num_voxels
        return "segments"

    def state(self) -> Arrays:
        """Return everything as arrays."""
        return {
            "segmentation": self.segmentation,
            "probability": self.probability,
            "origins": origins_table(self.origins),
            "overlaps": overlaps_table(self.origins),
            "counters": np.array([self.counters[name] for name in COUNTERS]),
        }

    def resume(self, state: Arrays) -> None:
        """Undo `state`."""
        self.segmentation[...] = state["segmentation"]
        self.probability[...] = state["probability"]
        self.counters = dict(zip(COUNTERS, state["counters"].tolist(), strict=True))
        self.num_filled = int(np.count_nonzero(self.segmentation > 0))
        self.origins = [Origin(i, (z, y, x), fovs, {}, n) for i, z, y, x, fovs, n in state["origins"].tolist()]
        for segment_id, other, count in state["overlaps"].tolist():
            self.origins[segment_id - 1].overlaps[other] = count


def origins_table(origins: list[Origin]) -> np.ndarray:
    """Return id, seed z, y, x, FOVs and pass of each, int64 (N, 6)."""
    rows = [(o.segment_id, *o.seed_zyx, o.num_fovs, o.pass_number) for o in origins]
    return np.array(rows, np.int64).reshape(-1, 6)


def overlaps_table(origins: list[Origin]) -> np.ndarray:
    """Return id, earlier id and voxels claimed of both, int64 (N, 3)."""
    rows = [(o.segment_id, other, count) for o in origins for other, count in sorted(o.overlaps.items())]
    return np.array(rows, np.int64).reshape(-1, 3)
