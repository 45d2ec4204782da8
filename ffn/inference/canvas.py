"""State of flood filling in one subvolume: image, predicted object map (POM) and segmentation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import ZYX, Box, add

REJECTED = -1


def logit(probability: float) -> float:
    """Return ln(p / (1 - p)) rounded to float32, the type of the canvas."""
    return float(np.float32(np.log(probability) - np.log1p(-probability)))


@dataclass(frozen=True)
class Thresholds:
    """Probabilities of `SegmentConfig` as logits, converted once at the border of the inner loop."""

    init: float
    pad: float
    move: float
    segment: float
    freeze_share: float

    @classmethod
    def of(cls, config: SegmentConfig) -> Thresholds:
        """Convert the configuration's probabilities."""
        return cls(
            init=logit(config.init_activation),
            pad=logit(config.pad_value),
            move=logit(config.move_threshold),
            segment=logit(config.segment_threshold),
            freeze_share=config.disco_seed_threshold,
        )


class Canvas:
    """Image, POM and segmentation of one subvolume, in voxels relative to its first.

    Parameters
    ----------
    image : float32 ndarray of shape (Z, Y, X)
        Normalised image.
    model : ModelConfig
        FOV and deltas.
    thresholds : Thresholds
        Logits that steer the flood.

    Attributes
    ----------
    pom_logit : float32 ndarray of shape (Z, Y, X)
        Logits of the object being grown; NaN where never visited.
    segmentation : int32 ndarray of shape (Z, Y, X)
        0 free, positive an id, `REJECTED` a seed voxel that gave nothing.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods; the freeze rule is google/ffn's `disco_seed_threshold`.
    """

    def __init__(self, image: np.ndarray, model: ModelConfig, thresholds: Thresholds) -> None:
        self.image = image
        self.thresholds = thresholds
        self.shape: ZYX = image.shape
        self.radius_zyx = model.fov_radius_zyx
        self.pom_logit = np.full(image.shape, np.nan, np.float32)
        self.segmentation = np.zeros(image.shape, np.int32)
        self._valid = Box.from_shape(self.shape).grow((-self.radius_zyx[0], -self.radius_zyx[1], -self.radius_zyx[2]))
        self._visited: Box | None = None

    def start(self, seed_zyx: ZYX) -> None:
        """Clear the POM and put the seed on it."""
        if (
            self._visited is not None
        ):  # only what the last object touched: a whole fill would cost more than the network
            self.pom_logit[self._visited.slices()] = np.nan
        self._visited = Box.from_shape((1, 1, 1), seed_zyx)
        self.pom_logit[seed_zyx] = self.thresholds.init

    def fits(self, position_zyx: ZYX) -> bool:
        """Whether the FOV at `position_zyx` lies inside the subvolume."""
        (z0, y0, x0), (z1, y1, x1) = self._valid.start, self._valid.stop
        z, y, x = position_zyx
        return z0 <= z < z1 and y0 <= y < y1 and x0 <= x < x1

    def may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the flood may evaluate here now: FOV inside, POM at least at the move threshold, voxel free."""
        return (
            self.fits(position_zyx)
            and bool(self.pom_logit[position_zyx] >= self.thresholds.move)
            and self.segmentation[position_zyx] <= 0
        )

    def is_strong(self, seed_zyx: ZYX) -> bool:
        """Whether the seed voxel still belongs to its own object."""
        return bool(self.pom_logit[seed_zyx] >= self.thresholds.move)

    def fov(self, position_zyx: ZYX) -> Box:
        """Return the FOV around `position_zyx`."""
        return Box(position_zyx, add(position_zyx, (1, 1, 1))).grow(self.radius_zyx)

    def read(self, position_zyx: ZYX) -> tuple[np.ndarray, np.ndarray]:
        """Return image and POM (logits, `pad` where never visited) of the FOV, the network's input."""
        where = self.fov(position_zyx).slices()
        pom = self.pom_logit[where].copy()
        np.copyto(pom, self.thresholds.pad, where=np.isnan(pom))
        return self.image[where], pom

    def write(self, position_zyx: ZYX, pom_logit: np.ndarray) -> np.ndarray:
        """Put the network's answer on the canvas under the freeze rule.

        Parameters
        ----------
        position_zyx : tuple of int
            Centre of the FOV.
        pom_logit : float32 ndarray of the FOV's shape
            Updated logits; changed in place.

        Returns
        -------
        float32 ndarray
            What is on the canvas now.
        """
        fov = self.fov(position_zyx)
        old = self.pom_logit[fov.slices()]
        limits = self.thresholds
        if limits.freeze_share >= 0 and np.mean(pom_logit >= limits.move) > limits.freeze_share:
            # what was once background cannot come back; comparisons with NaN are false, so new voxels stay free
            np.copyto(pom_logit, old, where=(old < 0) & (pom_logit > old))
        old[...] = pom_logit
        visited = self._visited or fov
        self._visited = Box(
            tuple(map(min, visited.start, fov.start)),  # type: ignore[arg-type]
            tuple(map(max, visited.stop, fov.stop)),  # type: ignore[arg-type]
        )
        return pom_logit

    def object_mask(self) -> tuple[Box, np.ndarray]:
        """Return the visited box and, inside it, where the POM reaches the segment threshold."""
        assert self._visited is not None
        return self._visited, self.pom_logit[self._visited.slices()] >= self.thresholds.segment
