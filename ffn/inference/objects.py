"""Grown objects in compact form, until it is their turn to become segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffn.geometry import ZYX, Box, zyx
from ffn.inference.grower import Arrays, ObjectGrower

DECIDED_LOGIT = 1.386  # a POM of 0.8; below 0.2, a voxel is decided as well


class PomVoxels(NamedTuple):
    """Visited voxels of an object by their POM: between 0.2 and 0.8, and above."""

    undecided: int = 0
    in_object: int = 0

    @classmethod
    def of(cls, pom_logit: np.ndarray) -> PomVoxels:
        """Count the voxels of a POM (NaN where not visited)."""
        above = [int(np.count_nonzero(pom_logit >= limit)) for limit in (-DECIDED_LOGIT, DECIDED_LOGIT)]
        return cls(above[0] - above[1], above[1])


@dataclass(frozen=True)
class GrownObject:
    """An object that has stopped growing, without its canvas.

    Parameters
    ----------
    seed_zyx : tuple of int
        Seed voxel.
    evaluated : int64 ndarray of shape (N, 3)
        Positions of the FOVs.
    is_strong, limited : bool
        Whether it still includes its seed; whether a limit has stopped it.
    box : Box
        Bounding box of its voxels.
    probability : uint8 ndarray of ``box.shape``
        1 … 255 at its voxels, 0 elsewhere; empty if the object is too weak or too small to become a segment.
    pom_voxels : PomVoxels
        How far its POM tells object from background.
    """

    seed_zyx: ZYX
    evaluated: np.ndarray
    is_strong: bool
    limited: bool
    box: Box
    probability: np.ndarray
    pom_voxels: PomVoxels = PomVoxels()

    @classmethod
    def harvest(cls, grower: ObjectGrower, min_voxels: int) -> GrownObject:
        """Copy an object from its canvas, without its voxels if they are fewer than `min_voxels`."""
        box, mask = grower.canvas.object_mask()
        if grower.is_strong and np.count_nonzero(mask) >= min_voxels:
            probability = np.zeros(box.shape, np.uint8)
            probability[mask] = quantise(grower.canvas.visited_pom()[1][mask])
        else:
            box, probability = Box(grower.seed_zyx, grower.seed_zyx), np.zeros((0, 0, 0), np.uint8)
        counted = PomVoxels.of(grower.canvas.visited_pom()[1])
        return cls(grower.seed_zyx, grower.evaluated, grower.is_strong, grower.limited, box, probability, counted)

    @property
    def num_fovs(self) -> int:
        """Number of network evaluations."""
        return len(self.evaluated)

    def covers(self, points: np.ndarray) -> np.ndarray:
        """Return for each point (z, y, x) whether the object includes it."""
        inside = np.flatnonzero(((points >= self.box.start) & (points < self.box.stop)).all(axis=1))
        z, y, x = (points[inside] - self.box.start).T
        covered = np.zeros(len(points), bool)
        covered[inside] = self.probability[z, y, x] > 0
        return covered

    def state(self) -> Arrays:
        """Return the state as arrays."""
        return {
            "seed": np.array(self.seed_zyx),
            "evaluated": self.evaluated,
            "flags": np.array([self.is_strong, self.limited]),
            "box": np.array([self.box.start, self.box.stop]),
            "probability": self.probability,
            "pom_voxels": np.array(self.pom_voxels),
        }

    @classmethod
    def resume(cls, state: Arrays) -> GrownObject:
        """Restore what `state` returned."""
        is_strong, limited = map(bool, state["flags"])
        start, stop = map(zyx, state["box"])
        counted = PomVoxels(*state["pom_voxels"].tolist())
        box, seed = Box(zyx(start), zyx(stop)), zyx(state["seed"])
        return cls(seed, state["evaluated"], is_strong, limited, box, state["probability"], counted)


def quantise(pom_logit: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits as uint8 from 1 to 255; 0 is reserved for voxels outside.

    Examples
    --------
    >>> quantise(np.array([-100.0, 0.0, 100.0])).tolist()
    [1, 128, 255]
    """
    from scipy.special import expit

    return (1 + np.rint(254 * expit(pom_logit))).astype(np.uint8)
