"""The voxels of an object that has grown, and what its POM tells of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffn.geometry import Box

DECIDED_LOGIT = 1.386  # a POM of 0.8; below 0.2, a voxel is decided as well


NO_VOXELS = Box((0, 0, 0), (0, 0, 0)), np.zeros((0, 0, 0), np.uint8)  # of an object that is too small


class Harvest(NamedTuple):
    """An object without its canvas."""

    box: Box  # around its voxels
    probability: np.ndarray  # uint8 in the box: 1 … 255 at the object's voxels, 0 elsewhere
    undecided: int  # visited voxels with a POM between 0.2 and 0.8
    in_object: int  # and above

    @classmethod
    def of(cls, visited: Box, pom_logit: np.ndarray, segment_logit: float, least: int | None) -> Harvest:
        """Take the voxels of a POM (NaN where not visited) above a threshold, if there are `least`; None wants none."""
        visible, inside = (int(np.count_nonzero(pom_logit >= limit)) for limit in (-DECIDED_LOGIT, DECIDED_LOGIT))
        mask = pom_logit >= segment_logit
        if least is None or np.count_nonzero(mask) < least:
            return cls(*NO_VOXELS, visible - inside, inside)
        probability = np.zeros(visited.shape, np.uint8)
        probability[mask] = quantise(pom_logit[mask])
        return cls(visited, probability, visible - inside, inside)


def quantise(pom_logit: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits as uint8 from 1 to 255; 0 is reserved for voxels outside.

    Examples
    --------
    >>> quantise(np.array([-100.0, 0.0, 100.0])).tolist()
    [1, 128, 255]
    """
    from scipy.special import expit

    return (1 + np.rint(254 * expit(pom_logit))).astype(np.uint8)


def quantised_from() -> np.ndarray:
    """Return the least logits (float32) that `quantise` turns into 2 … 255, for devices that round otherwise.

    Examples
    --------
    >>> least = quantised_from()
    >>> quantise(least)[[0, 126, 253]].tolist(), quantise(np.nextafter(least, np.float32(-9)))[[0, 126, 253]].tolist()
    ([2, 128, 255], [1, 127, 254])
    """
    above = np.full(254, np.float32(30).view(np.int32), np.int64)  # bits of positive floats are in their order
    below = -above
    while (above - below > 1).any():
        middle = (above + below) // 2
        reached = quantise(_float_of(middle)) >= np.arange(2, 256)
        above, below = np.where(reached, middle, above), np.where(reached, below, middle)
    return _float_of(above)


def _float_of(order: np.ndarray) -> np.ndarray:
    return np.copysign(np.abs(order).astype(np.uint32).view(np.float32), order).astype(np.float32)
