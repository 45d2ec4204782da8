"""The walk of the field of view (FOV) over one training example, with its whole state explicit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, add, zyx
from ffn.inference.canvas import logit
from ffn.inference.movement import FaceMaxMovement
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example

INIT_LOGIT = logit(0.95)  # POM at the central voxel (Januszewski et al. 2018, as in inference)
PAD_LOGIT = logit(0.05)
MOVE_LOGIT = logit(0.9)

Slices = tuple[slice, slice, slice]


class Walk:
    """A FOV that visits the centre of an example, then the positions that the network's own POM reaches.

    Parameters
    ----------
    example : Example
        Patch of `ffn.training.data.examples.patch_size`.
    model : ModelConfig
        FOV and deltas.
    train : TrainConfig
        FOV policy.

    Attributes
    ----------
    canvas_logit : float32 ndarray of shape (Z, Y, X)
        Predicted object map (POM) of the patch.
    position_zyx : tuple of int
        Centre of the FOV, voxels of the patch.

    Notes
    -----
    ``fixed`` and ``fixed_window`` try the example's moves in order, and take each one whose POM has reached the
    threshold by then. ``max_pred`` moves as inference does, within the patch. Unlike inference, it continues when the
    POM at the centre drops below the threshold, because there is still something to learn.
    """

    def __init__(self, example: Example, model: ModelConfig, train: TrainConfig) -> None:
        self.example = example
        self._fov_radius_zyx = model.fov_radius_zyx
        self._deltas_zyx = model.deltas_zyx
        self._policy = train.fov_policy
        center = zyx(n // 2 for n in example.image.shape)
        self.canvas_logit: np.ndarray = np.full(example.image.shape, PAD_LOGIT, np.float32)
        self.canvas_logit[center] = INIT_LOGIT
        moves = [] if self._policy == "max_pred" else [add(center, move) for move in example.moves_zyx]
        self.position_zyx: ZYX = center
        self._movement = self._resume(moves, [])

    @property
    def window(self) -> Slices:
        """Where the FOV lies in the patch."""
        return Box.around(self.position_zyx, self._fov_radius_zyx).slices()

    def write(self, pom_logit: np.ndarray) -> None:
        """Write the network's output, which has the shape of the FOV, to the canvas."""
        self.canvas_logit[self.window] = pom_logit

    def advance(self) -> bool:
        """Move to the next position that the POM has reached; return False if none is left."""
        if self._policy == "max_pred":
            self._movement.update(self.position_zyx, self.canvas_logit[self.window])
        while (position := self._movement.pop()) is not None:
            if self._may_visit(position):
                self.position_zyx = position
                return True
        return False

    def state(self) -> tuple[ZYX, list[ZYX], list[ZYX]]:
        """Return the FOV's position, its queue and the positions it evaluated: the whole state but for the canvas."""
        return self.position_zyx, list(self._movement.queue), self._movement.evaluated

    def restore(
        self, canvas_logit: np.ndarray, position_zyx: ZYX, queue: Iterable[ZYX], evaluated: Iterable[ZYX]
    ) -> None:
        """Restore a canvas and what `state` returned."""
        self.canvas_logit[:] = canvas_logit
        self.position_zyx = position_zyx
        self._movement = self._resume(queue, evaluated)

    def score(self) -> np.ndarray:
        """Compare the whole patch with its labels at the move threshold.

        Returns
        -------
        int64 ndarray of shape (4,)
            True positives, false positives, true negatives, false negatives. Voxels of loss weight 0 do not count.
        """
        known = self.example.loss_weight > 0
        found = (self.canvas_logit >= MOVE_LOGIT) & known
        truth = (self.example.labels > 0.5) & known
        num_known, num_found, num_true, both = (np.count_nonzero(mask) for mask in (known, found, truth, found & truth))
        counts = (both, num_found - both, num_known - num_found - num_true + both, num_true - both)
        return np.array(counts, np.int64)

    def _resume(self, queue: Iterable[ZYX], evaluated: Iterable[ZYX]) -> FaceMaxMovement:
        center = zyx(n // 2 for n in self.canvas_logit.shape)
        return FaceMaxMovement(center, self._deltas_zyx, MOVE_LOGIT, queue, evaluated)

    def _may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV fits at `position_zyx` and the POM there is high enough by now."""
        if not self._patch.contains(Box.around(position_zyx, self._fov_radius_zyx)):
            return False
        radius = 1 if self._policy == "fixed_window" else 0
        near = Box.around(position_zyx, (radius, radius, radius)).intersect(self._patch)
        return bool(self.canvas_logit[near.slices()].max() >= MOVE_LOGIT)

    @property
    def _patch(self) -> Box:
        return Box.from_shape(zyx(self.canvas_logit.shape))
