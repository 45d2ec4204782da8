"""Grown objects in compact form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffn.geometry import ZYX, Box
from ffn.inference.grower import ObjectGrower

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
        box, probability = Box(grower.seed_zyx, grower.seed_zyx), np.zeros((0, 0, 0), np.uint8)
        visited, pom_logit = grower.canvas.visited_pom()
        mask = pom_logit >= grower.canvas.thresholds.segment
        if grower.is_strong and np.count_nonzero(mask) >= min_voxels:
            box, probability = visited, np.zeros(visited.shape, np.uint8)
            probability[mask] = quantise(pom_logit[mask])
        counted = PomVoxels.of(pom_logit)
        return cls(grower.seed_zyx, grower.num_fovs, grower.is_strong, grower.limited, box, probability, counted)


def quantise(pom_logit: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits as uint8 from 1 to 255; 0 is reserved for voxels outside.

    Examples
    --------
    >>> quantise(np.array([-100.0, 0.0, 100.0])).tolist()
    [1, 128, 255]
    """
    from scipy.special import expit

    return (1 + np.rint(254 * expit(pom_logit))).astype(np.uint8)
