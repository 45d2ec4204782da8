"""A canvas whose image and POM are on the device; the host knows the logits that it needs to move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, add
from ffn.inference.canvas import Canvas, Step, Thresholds, reach_of
from ffn.inference.movement import offsets_of_maxima, sides

if TYPE_CHECKING:
    from ffn.inference.device.lanes import DeviceLanes


class DeviceCanvas(Canvas):
    """One lane of `DeviceLanes`, for which `put` takes what the device returned.

    Parameters
    ----------
    lanes : DeviceLanes
        Hold image and POM.
    lane : int
        Number of this canvas among them.
    model : ModelConfig
        FOV and deltas.
    thresholds : Thresholds
        Logits that control the flood.
    segmentation : int32 ndarray of shape (Z, Y, X)
        As in `Canvas`; it stays on the host.
    """

    def __init__(
        self, lanes: DeviceLanes, lane: int, model: ModelConfig, thresholds: Thresholds, segmentation: np.ndarray
    ) -> None:
        self.thresholds = thresholds
        self.shape = segmentation.shape
        self.radius_zyx = model.fov_radius_zyx
        self.deltas_zyx = model.deltas_zyx
        self.segmentation = segmentation
        self.reach = reach_of(self.shape, model)
        self.num_deleted = 0
        self.lane = lane
        self._lanes = lanes
        self._visited: Box | None = None
        self.asked: list[ZYX] = []  # positions whose logits come with the next answer
        self._logits: dict[ZYX, float] = {}  # known since the last FOV

    def start(self, seed_zyx: ZYX) -> None:
        """Clear the POM and activate the seed voxel."""
        self._visited = Box.around(seed_zyx)
        self.num_deleted = 0
        self._lanes.clear(self.lane, seed_zyx, self.thresholds.init)
        self._logits = {seed_zyx: self.thresholds.init}

    def resume(self, visited: Box, pom_logit: np.ndarray) -> None:
        """Clear the POM and restore what `visited_pom` returned."""
        self._visited = visited
        self._lanes.restore(self.lane, visited, pom_logit)
        self._logits = {}

    def logit(self, position_zyx: ZYX) -> float:
        """Return the POM at a voxel; it is fetched only if the last FOV did not bring it along."""
        if position_zyx not in self._logits:
            self._logits[position_zyx] = self._lanes.logit(self.lane, position_zyx)
        return self._logits[position_zyx]

    def put(self, position_zyx: ZYX, answer: np.ndarray, count: bool = False) -> Step:
        """Take the answer of `Stepper.step`, whose FOV is on the device already.

        Parameters
        ----------
        position_zyx : tuple of int
            Centre of the FOV.
        answer : int32 ndarray
            Row of this canvas.
        count : bool
            Without effect: voxels are counted in any case.
        """
        num_sides = len(sides(self.deltas_zyx))
        logits = answer.view(np.float32)
        *flats, num_new_voxels, num_deleted = answer[num_sides : 2 * num_sides + 2].tolist()
        moves = offsets_of_maxima(logits[:num_sides].tolist(), flats, self.deltas_zyx, self.thresholds.move)
        self._logits = {add(position_zyx, offset): score for score, offset in moves}
        watched = logits[2 * num_sides + 2 :].tolist()
        self._logits.update(zip(self.asked, watched, strict=True))
        self._visited = Box.hull((self.visited, self.fov(position_zyx)))
        self.num_deleted += num_deleted
        return Step(moves, num_new_voxels)

    @property
    def visited(self) -> Box:
        """Bounding box of the voxels visited for this object."""
        assert self._visited is not None
        return self._visited

    def visited_pom(self) -> tuple[Box, np.ndarray]:
        """Fetch the POM in the bounding box of the voxels visited for this object (NaN where not visited)."""
        return self.visited, self._lanes.fetch(self.lane, self.visited)
