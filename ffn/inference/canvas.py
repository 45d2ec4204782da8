"""The canvas of a growing object: image, predicted object map (POM), segmentation so far; its frame; its harvest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box, scale, subtract, zyx
from ffn.inference.movement import ScoredOffset, face_max_offsets

REJECTED = -1
MASKED = -2
DECIDED_LOGIT = 1.386  # a POM of 0.8; below 0.2, a voxel is decided as well


NO_VOXELS = Box((0, 0, 0), (0, 0, 0)), np.zeros((0, 0, 0), np.uint8)  # of an object that is too small


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
        of_voxels = config.init_activation, config.pad_value, config.move_threshold, config.segment_threshold
        init, pad, move, segment = map(logit, of_voxels)
        return cls(init, pad, move, segment, config.disco_seed_threshold)


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
        self.refused: Sequence[Box] = ()

    def refuse(self, boxes: Sequence[Box]) -> None:
        """Let no FOV be centred in these boxes, though objects may reach into them. Before the first object starts."""
        self.refused = boxes

    def is_refused(self, position_zyx: ZYX) -> bool:
        """Whether no FOV may be centred here."""
        return any(box.contains(Box.around(position_zyx)) for box in self.refused)

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

    def may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV may move here now: it fits, the voxel is free, and the POM reaches the move threshold."""
        (z0, y0, x0), (z1, y1, x1) = self.reach.start, self.reach.stop
        z, y, x = position_zyx
        return (
            (z0 <= z < z1 and y0 <= y < y1 and x0 <= x < x1)
            and bool(REJECTED <= self.segmentation[position_zyx] <= 0)
            and self.is_strong(position_zyx)
            and not self.is_refused(position_zyx)
        )

    def is_strong(self, position_zyx: ZYX) -> bool:
        """Whether the POM at a voxel, such as the seed, reaches the move threshold now."""
        return float(self.pom_logit[position_zyx]) >= self.thresholds.move

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
    """A box, the image around it, and its canvas: beyond the faces of the image, its mirror image.

    A FOV has to lie on the canvas as a whole. Without a frame, no FOV is centred within its radius of a face of the
    box, and only the rims of FOVs see this part: a third of the voxels of a cube of 250³ with a FOV of 33³.
    """

    box: Box  # where objects are wanted
    seen: Box  # the image on the canvas
    canvas: Box

    @classmethod
    def of(cls, box: Box, image: Box, model: ModelConfig, mirror: bool, within: Box | None = None) -> Frame:
        """Return the frame of a box inside `image`.

        Where the box ends, FOVs may be centred up to one move beyond it, so that they follow objects which leave it
        and come back. With `mirror`, they may be centred up to the faces of the image. Of a subvolume of `within`,
        this applies to the faces of `within` only; at the others, its neighbours segment what follows.

        Examples
        --------
        >>> model = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 1))
        >>> image, whole = Box((0, 0, 0), (9, 99, 30)), Box((0, 9, 1), (9, 29, 30))
        >>> str(Frame.of(Box((0, 9, 1), (9, 20, 20)), image, model, True, whole).canvas)
        '-1:10,6:20,-3:20'
        """
        context, radius, ends = model.context_zyx, model.fov_radius_zyx if mirror else (0, 0, 0), within or box
        start = (
            max(a - more, first - r) if a == end else a
            for a, end, first, more, r in zip(box.start, ends.start, image.start, context, radius, strict=True)
        )
        stop = (
            min(b + more, last + r) if b == end else b
            for b, end, last, more, r in zip(box.stop, ends.stop, image.stop, context, radius, strict=True)
        )
        canvas = Box(zyx(start), zyx(stop))
        return cls(box, canvas.intersect(image), canvas)

    @property
    def inside(self) -> Box:
        """Where the image is on the canvas."""
        return self.seen.shift(scale(self.canvas.start, -1))

    @property
    def wanted(self) -> Box:
        """Where the box is on the canvas."""
        return self.box.shift(scale(self.canvas.start, -1))

    def mirrored(self, raw: np.ndarray) -> np.ndarray:
        """Return the image of the canvas from that of `seen`."""
        before, after = subtract(self.seen.start, self.canvas.start), subtract(self.canvas.stop, self.seen.stop)
        return np.pad(raw, list(zip(before, after, strict=True)), mode="reflect")

    def masked(self, segmentation: np.ndarray) -> np.ndarray:
        """Return the int32 segmentation of the canvas from that of `seen`: voxels beyond are masked."""
        whole = np.full(self.canvas.shape, MASKED, np.int32)
        whole[self.inside.slices()] = segmentation
        return whole

    def padded(self, labels: np.ndarray) -> np.ndarray:
        """Return labels of the box on the canvas, 0 beyond the box."""
        whole = np.zeros(self.canvas.shape, labels.dtype)
        whole[self.wanted.slices()] = labels
        return whole
