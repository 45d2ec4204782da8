"""The canvas of a growing object: image, predicted object map (POM) and the segmentation so far; and its frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box, scale, subtract, zyx
from ffn.inference.harvest import Harvest
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

    `inside` is the box of the image, which is mirrored beyond it, see `Frame`; `reach` are the
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
        self.pom_logit = np.full(image.shape, np.nan, np.float32)  # of the current object; NaN where not visited
        empty = np.zeros(image.shape, np.int32) if segmentation is None else segmentation
        self._prepare(model, thresholds, empty, inside)

    def _prepare(
        self, model: ModelConfig, thresholds: Thresholds, segmentation: np.ndarray, inside: Box | None
    ) -> None:
        """Set what does not depend on where the POM is."""
        self.thresholds = thresholds
        self.shape: ZYX = segmentation.shape
        self.radius_zyx = model.fov_radius_zyx
        self.deltas_zyx = model.deltas_zyx
        # 0: free; positive: segment id; REJECTED: seed without a segment, free as well; MASKED: not to be entered
        self.segmentation = segmentation
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

    def claim(self) -> None:
        """Take note that the object has become a segment, which `segmentation` shows already."""

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

    def harvest(self, least: int | None) -> Harvest:
        """Return the object, with its voxels if they are as many as `least`."""
        return Harvest.of(*self.visited_pom(), self.thresholds.segment, least)

    def object_mask(self) -> tuple[Box, np.ndarray]:
        """Return the bounding box of the visited voxels, and where in it the POM reaches the segment threshold."""
        box, pom_logit = self.visited_pom()
        return box, pom_logit >= self.thresholds.segment


class Frame(NamedTuple):
    """A box, and its canvas: beyond the faces of the image, its mirror image, so that FOVs are centred up to them.

    A FOV has to lie on the canvas as a whole. Without a frame, no FOV is centred within its radius of a face of the
    image, and only the rims of FOVs see this part: a third of the voxels of a cube of 250³ with a FOV of 33³.
    """

    box: Box  # where objects are wanted
    canvas: Box  # that box, and the radius of the FOV more where it ends with the image

    @classmethod
    def of(cls, box: Box, image: Box, radius_zyx: ZYX) -> Frame:
        """Return the frame of a box inside `image` for FOVs of this radius; with 0, the canvas is the box.

        Examples
        --------
        >>> str(Frame.of(Box((0, 0, 8), (9, 9, 20)), Box((0, 0, 0), (9, 99, 20)), (1, 2, 3)).canvas)
        '-1:10,-2:9,8:23'
        """
        sides = zip(box.start, box.stop, image.start, image.stop, radius_zyx, strict=True)
        ends = [(start - r * (start == first), stop + r * (stop == end)) for start, stop, first, end, r in sides]
        start, stop = zip(*ends, strict=True)
        return cls(box, Box(zyx(start), zyx(stop)))

    @property
    def inside(self) -> Box:
        """Where the box is on the canvas."""
        return self.box.shift(scale(self.canvas.start, -1))

    @property
    def offset_zyx(self) -> ZYX:
        """The first voxel of the box, in voxels of the canvas."""
        return subtract(self.box.start, self.canvas.start)

    def has_room_for(self, size_zyx: ZYX) -> bool:
        """Whether FOVs of this size see the box, on every axis: it is as large, or mirrored at both ends.

        Mirrored at one end, a thinner box would have a FOV centred on its face, and nowhere else.

        Examples
        --------
        >>> image = Box((0, 0, 0), (4, 99, 99))
        >>> [Frame.of(box, image, (4, 4, 4)).has_room_for((9, 9, 9)) for box in (image, Box((0, 0, 0), (3, 99, 99)))]
        [True, False]
        """
        before, after = self.offset_zyx, subtract(self.canvas.stop, self.box.stop)
        sides = zip(self.box.shape, size_zyx, before, after, strict=True)
        return all(n >= size or (first and last) for n, size, first, last in sides)

    def mirrored(self, raw: np.ndarray) -> np.ndarray:
        """Return the image of the canvas from that of the box, of shape ``box.shape``."""
        after = subtract(self.canvas.stop, self.box.stop)
        return np.pad(raw, list(zip(self.offset_zyx, after, strict=True)), mode="reflect")

    def masked(self, segmentation: np.ndarray) -> np.ndarray:
        """Return the int32 segmentation of the canvas from that of the box: voxels beyond are masked."""
        whole = np.full(self.canvas.shape, MASKED, np.int32)
        whole[self.inside.slices()] = segmentation
        return whole

    def padded(self, labels: np.ndarray) -> np.ndarray:
        """Return labels or a mask of the box on the canvas, 0 beyond the box."""
        whole = np.zeros(self.canvas.shape, labels.dtype)
        whole[self.inside.slices()] = labels
        return whole


def mirrored_radius(model: ModelConfig, config: FloodConfig) -> ZYX:
    """Return how far the image goes on as a mirror image: the radius of the FOV, 0 without ``mirror``."""
    return model.fov_radius_zyx if config.mirror else (0, 0, 0)
