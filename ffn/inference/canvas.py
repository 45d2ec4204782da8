"""The canvas of a growing object: image, predicted object map (POM) and the segmentation so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box, scale
from ffn.inference.movement import ScoredOffset, face_max_offsets

REJECTED = -1
MASKED = -2


def logit(probability: float) -> float:
    """Return ln(p / (1 - p)), rounded to float32 as the canvas is."""
    return float(np.float32(np.log(probability) - np.log1p(-probability)))


INSIDE_LOGIT = logit(0.8)  # with 0.5, the two limits of google/ffn for a voxel that was deleted


def is_free(labels: np.ndarray) -> np.ndarray:
    """Return where an object may grow: neither in another segment nor masked.

    Examples
    --------
    >>> is_free(np.array([0, 7, REJECTED, MASKED])).tolist()
    [True, False, True, False]
    """
    return (labels == 0) | (labels == REJECTED)


def reach_of(shape_zyx: ZYX, model: ModelConfig) -> Box:
    """Return the positions at which the whole FOV lies inside an array; empty if it is smaller."""
    return Box.from_shape(shape_zyx).grow(scale(model.fov_radius_zyx, -1))


@dataclass(frozen=True)
class Thresholds:
    """The probabilities of `FloodConfig` as logits, converted once."""

    init: float
    pad: float
    move: float
    segment: float
    freeze_share: float

    @classmethod
    def of(cls, config: FloodConfig) -> Thresholds:
        """Convert the probabilities of the configuration."""
        return cls(
            init=logit(config.init_activation),
            pad=logit(config.pad_value),
            move=logit(config.move_threshold),
            segment=logit(config.segment_threshold),
            freeze_share=config.disco_seed_threshold,
        )


class Canvas:
    """Image, POM and segmentation of one subvolume; positions are relative to its first voxel.

    `inside` is the box of the image, which is mirrored beyond it, see `ffn.inference.frame.Frame`; `reach` are the
    positions at which the whole FOV lies inside the subvolume. Several canvases can share a `segmentation`.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods; the freeze rule is google/ffn's `disco_seed_threshold`.
    """

    def __init__(
        self,
        image: np.ndarray,
        model: ModelConfig,
        thresholds: Thresholds,
        segmentation: np.ndarray | None = None,
        inside: Box | None = None,
    ) -> None:
        self.image = image
        self.thresholds = thresholds
        self.shape: ZYX = image.shape
        self.radius_zyx = model.fov_radius_zyx
        self.deltas_zyx = model.deltas_zyx
        self.pom_logit = np.full(image.shape, np.nan, np.float32)  # of the current object; NaN where not visited
        # 0: free; positive: segment id; REJECTED: seed without a segment, free as well; MASKED: not to be entered
        self.segmentation = np.zeros(image.shape, np.int32) if segmentation is None else segmentation
        self.inside = inside or Box.from_shape(self.shape)
        self.reach = reach_of(self.shape, model)
        self.num_deleted = 0  # voxels of the object that fell from a POM of 0.8 or more to less than 0.5 in one FOV
        self._visited: Box | None = None

    def start(self, seed_zyx: ZYX) -> None:
        """Clear the POM and activate the seed voxel."""
        self._clear()
        self.num_deleted = 0
        self._visited = Box.around(seed_zyx)
        self.pom_logit[seed_zyx] = self.thresholds.init

    def resume(self, visited: Box, pom_logit: np.ndarray) -> None:
        """Clear the POM and restore the result of `visited_pom`."""
        self._clear()
        self._visited = visited
        self.pom_logit[visited.slices()] = pom_logit

    def _clear(self) -> None:
        """Clear the POM where the last object was; clearing all of it would cost more time than the network."""
        if self._visited is not None:
            self.pom_logit[self._visited.slices()] = np.nan

    def fits(self, position_zyx: ZYX) -> bool:
        """Whether the FOV at `position_zyx` lies inside the subvolume."""
        (z0, y0, x0), (z1, y1, x1) = self.reach.start, self.reach.stop
        z, y, x = position_zyx
        return z0 <= z < z1 and y0 <= y < y1 and x0 <= x < x1

    def may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV may move here now: it fits, the voxel is free, and the POM reaches the move threshold."""
        return (
            self.fits(position_zyx)
            and bool(REJECTED <= self.segmentation[position_zyx] <= 0)
            and self.is_strong(position_zyx)
        )

    def is_strong(self, position_zyx: ZYX) -> bool:
        """Whether the POM at a voxel, such as the seed, reaches the move threshold now."""
        return bool(self.logit(position_zyx) >= self.thresholds.move)

    def logit(self, position_zyx: ZYX) -> float:
        """Return the POM at a voxel."""
        return float(self.pom_logit[position_zyx])

    def fov(self, position_zyx: ZYX) -> Box:
        """Return the FOV around `position_zyx`."""
        return Box.around(position_zyx, self.radius_zyx)

    def read(self, position_zyx: ZYX) -> tuple[np.ndarray, np.ndarray]:
        """Return the image and the POM of the FOV, the inputs of the network; the POM is `pad` where not visited."""
        where = self.fov(position_zyx).slices()
        pom = self.pom_logit[where].copy()  # contiguous, which makes the next lines several times faster
        np.copyto(pom, self.thresholds.pad, where=np.isnan(pom))
        return self.image[where], pom

    def put(self, position_zyx: ZYX, pom_logit: np.ndarray) -> list[ScoredOffset]:
        """Write the output of the network, as `write` does; return the moves from there, best first."""
        return face_max_offsets(self.write(position_zyx, pom_logit), self.deltas_zyx, self.thresholds.move)

    def write(self, position_zyx: ZYX, pom_logit: np.ndarray) -> np.ndarray:
        """Write the output of the network to the canvas, under the freeze rule, and count the voxels that are lost."""
        fov = self.fov(position_zyx)
        where = fov.slices()
        old = self.pom_logit[where].copy()  # comparisons with NaN are false, so what follows leaves new voxels alone
        if self._freezes(pom_logit):  # background stays background
            np.copyto(pom_logit, old, where=(old < 0) & (pom_logit > old))
        counted = fov.intersect(self.inside).slices(fov.start)
        self.num_deleted += int(np.count_nonzero((old[counted] >= INSIDE_LOGIT) & (pom_logit[counted] < 0)))
        self.pom_logit[where] = pom_logit
        self._visited = fov if self._visited is None else Box.hull((self._visited, fov))
        return pom_logit

    def _freezes(self, pom_logit: np.ndarray) -> bool:
        share = self.thresholds.freeze_share
        return share >= 0 and int(np.count_nonzero(pom_logit >= self.thresholds.move)) / pom_logit.size > share

    def visited_pom(self) -> tuple[Box, np.ndarray]:
        """Return the bounding box of the voxels visited for this object, and the POM in it (NaN where not visited)."""
        assert self._visited is not None
        return self._visited, self.pom_logit[self._visited.slices()]

    def object_mask(self) -> tuple[Box, np.ndarray]:
        """Return the bounding box of the visited voxels, and where in it the POM reaches the segment threshold."""
        box, pom_logit = self.visited_pom()
        return box, pom_logit >= self.thresholds.segment
