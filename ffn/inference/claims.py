"""Turn grown objects into segments: earlier objects keep their voxels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ffn.config import SegmentConfig
from ffn.contingency import add_up
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape, zyx
from ffn.inference.canvas import MASKED, REJECTED, is_free
from ffn.inference.grower import Arrays, ObjectGrower
from ffn.inference.harvest import PomVoxels

OUTCOMES = ("outside", "masked", "taken", "too_close", "weak", "too_small", "segments")  # each seed has exactly one
GIVEN = 0  # pass of segments that were there before
STARTED = ("weak", "too_small", "segments")  # outcomes of seeds from which an object has grown
SIGNS = ("stuck", "undecided_voxels", "object_voxels")  # see `ffn.inference.sanity`
COUNTERS = ("fovs", "seeds", *OUTCOMES, "limited", *SIGNS)


@dataclass(frozen=True)
class GrownObject:
    """An object that has stopped growing, without its canvas."""

    seed_zyx: ZYX  # seed voxel
    num_fovs: int  # number of network evaluations
    is_strong: bool  # whether it still includes its seed; whether a limit has stopped it
    limited: bool
    box: Box  # bounding box of its voxels
    # 1 … 255 at its voxels, 0 elsewhere; empty if the object is too weak or too small to become a segment
    probability: np.ndarray
    pom_voxels: PomVoxels = PomVoxels()  # how far its POM tells object from background

    @classmethod
    def harvest(cls, grower: ObjectGrower, min_voxels: int) -> GrownObject:
        """Copy an object from its canvas, without its voxels if they are fewer than `min_voxels`."""
        found = grower.canvas.harvest(min_voxels if grower.is_strong else None)
        return cls(grower.seed_zyx, grower.num_fovs, grower.is_strong, grower.limited, *found)


@dataclass(frozen=True)
class Cells:
    """Cells of the full volume, as seen from a subvolume."""

    voxel_size_zyx_nm: VoxelSize = (10.0, 10.0, 10.0)
    offset_zyx: ZYX = (0, 0, 0)  # first voxel of the subvolume

    def first_voxels(self, points: np.ndarray) -> np.ndarray:
        """Return the first voxels of the cells of `points`, int64 (N, 3), full-volume voxels."""
        shape_zyx = cell_shape(self.voxel_size_zyx_nm)
        return (points + self.offset_zyx) // shape_zyx * shape_zyx


@dataclass(frozen=True)
class Origin:
    """How a segment was grown."""

    segment_id: int  # id in this subvolume
    seed_zyx: ZYX  # seed voxel, relative to the subvolume
    num_fovs: int  # network evaluations that it took
    # number of its voxels that belong to earlier segments, by their id and the first voxel (z, y, x) of their cell
    overlaps: dict[tuple[int, ...], int]
    pass_number: int = 1  # 1, or 2 for the second pass; 0 for a segment that was given


@dataclass
class Filling:
    """Result of flood filling a subvolume."""

    segmentation: np.ndarray  # ids from 1; 0 is background
    probability: np.ndarray  # POM of each segment at its voxels, with 1 … 255 for 0 … 1; 0 in the background
    origins: list[Origin] = field(default_factory=list)  # one per id, in order
    # outcomes of the seeds, and number of FOVs. ``stuck`` objects took one FOV; `PomVoxels` are added up over all
    # objects
    counters: dict[str, int] = field(default_factory=dict)


class Claims:
    """The segmentation of a subvolume, and the rules by which objects enter it one after the other.

    The segmentation (int32) is changed in place: 0 is free, `MASKED` is not to be entered. Seeds may be in `reach`.
    """

    def __init__(self, config: SegmentConfig, reach: Box, segmentation: np.ndarray, cells: Cells | None = None) -> None:
        self._cells = cells or Cells()
        self._distance = config.min_boundary_dist_zyx
        self.reach = reach
        self.segmentation = segmentation
        self.probability = np.zeros(segmentation.shape, np.uint8)
        self.origins: list[Origin] = []
        self.counters = dict.fromkeys(COUNTERS, 0)

    def adopt(self, labels: np.ndarray) -> np.ndarray:
        """Make segments of the given ones, before any object grows; masked voxels stay masked."""
        there = (labels != 0) & is_free(self.segmentation)
        ids, first, numbers = np.unique(labels[there], return_index=True, return_inverse=True)
        self.segmentation[there] = numbers + 1
        self.probability[there] = 255
        places = zip(*np.unravel_index(np.flatnonzero(there)[first], there.shape), strict=True)
        self.origins = [Origin(i, zyx(place), 0, {}, GIVEN) for i, place in enumerate(places, 1)]
        return ids

    def objection(self, seed: ZYX) -> str | None:
        """Return why no object may start at this seed now, as the name of a counter, or None if one may."""
        if not self.reach.contains(Box.around(seed)):
            return "outside"
        found = self.segmentation[seed]
        if found == MASKED:
            return "masked"
        if found > 0:
            return "taken"
        around = Box.around(seed, self._distance).intersect(Box.from_shape(zyx(self.segmentation.shape)))
        return "too_close" if (self.segmentation[around.slices()] > 0).any() else None

    def refuse(self, seed: ZYX, objection: str) -> None:
        """Count a seed that may not start, by the name of its `objection`."""
        self.counters["seeds"] += 1
        self.counters[objection] += 1
        if objection == "too_close":
            self.segmentation[seed] = REJECTED

    def settle(self, grown: GrownObject, min_voxels: int, pass_number: int) -> bool:
        """Turn an object into a segment if it is strong and large enough; return whether it is."""
        outcome = self._claim(grown, min_voxels, pass_number) if grown.is_strong else "weak"
        if outcome != "segments":
            self.segmentation[grown.seed_zyx] = REJECTED
        self.counters["seeds"] += 1
        self.counters[outcome] += 1
        self.counters["fovs"] += grown.num_fovs
        self.counters["limited"] += grown.limited
        self.counters["stuck"] += grown.num_fovs <= 1
        self.counters["undecided_voxels"] += grown.pom_voxels.undecided
        self.counters["object_voxels"] += grown.pom_voxels.in_object
        return outcome == "segments"

    def forget_rejections(self) -> None:
        """Free the seed voxels that became no segment, for the next pass."""
        self.segmentation[self.segmentation == REJECTED] = 0

    def filling(self) -> Filling:
        """Return the result so far."""
        return Filling(np.maximum(self.segmentation, 0), self.probability, self.origins, dict(self.counters))

    def _claim(self, grown: GrownObject, min_voxels: int, pass_number: int) -> str:
        labels = self.segmentation[grown.box.slices()]
        mask = (grown.probability > 0) & is_free(labels)
        if np.count_nonzero(mask) < min_voxels:
            return "too_small"
        shared = (grown.probability > 0) & (labels > 0)
        cells = self._cells.first_voxels(np.argwhere(shared) + grown.box.start)
        counted = add_up(np.column_stack([labels[shared], cells, np.ones(len(cells), np.int64)]))
        overlaps = {tuple(place): count for *place, count in counted.tolist()}
        segment_id = len(self.origins) + 1
        labels[mask] = segment_id
        self.probability[grown.box.slices()][mask] = grown.probability[mask]
        self.origins.append(Origin(segment_id, grown.seed_zyx, grown.num_fovs, overlaps, pass_number))
        return "segments"

    def state(self) -> Arrays:
        """Return the state as arrays."""
        return {
            "segmentation": self.segmentation,
            "probability": self.probability,
            "origins": origins_table(self.origins),
            "overlaps": overlaps_table(self.origins),
            "counters": np.array([self.counters[name] for name in COUNTERS]),
        }

    def resume(self, state: Arrays) -> None:
        """Restore the result of `state`."""
        self.segmentation[...] = state["segmentation"]
        self.probability[...] = state["probability"]
        self.counters = dict(zip(COUNTERS, state["counters"].tolist(), strict=True))
        self.origins = [Origin(i, (z, y, x), fovs, {}, n) for i, z, y, x, fovs, n in state["origins"].tolist()]
        for segment_id, *place, count in state["overlaps"].tolist():
            self.origins[segment_id - 1].overlaps[tuple(place)] = count


def origins_table(origins: list[Origin]) -> np.ndarray:
    """Return an int64 table of shape (N, 6): id, seed z, y, x, number of FOVs, pass."""
    rows = [(o.segment_id, *o.seed_zyx, o.num_fovs, o.pass_number) for o in origins]
    return np.array(rows, np.int64).reshape(-1, 6)


def overlaps_table(origins: list[Origin]) -> np.ndarray:
    """Return an int64 table of shape (N, 6): id, earlier id, first voxel of a cell, number of voxels in both there."""
    rows = [(o.segment_id, *place, count) for o in origins for place, count in sorted(o.overlaps.items())]
    return np.array(rows, np.int64).reshape(-1, 6)
