"""The canvas of a box: where the image ends, it goes on as a mirror image, so that FOVs are centred up to its faces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffn.config import FloodConfig, ModelConfig
from ffn.geometry import ZYX, Box, scale, subtract, zyx
from ffn.inference.canvas import MASKED


class Frame(NamedTuple):
    """A box, and the canvas around it.

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
