"""The walk of the field of view (FOV) over one training example, with its whole state explicit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, add, scale, subtract, zyx
from ffn.inference.canvas import logit
from ffn.inference.movement import FaceMaxMovement
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example

INIT_LOGIT = logit(0.95)  # POM at the central voxel (Januszewski et al. 2018, as in inference)
PAD_LOGIT = logit(0.05)
MOVE_LOGIT = logit(0.9)
RUNAWAY_LOGIT = 100.0  # our choice; trained networks stay below 15 on FIB-25

MAX_DISTANCE = 3  # deltas from the centre; moves that lead further count as this one
NUM_COUNTS = 4 + MAX_DISTANCE * 3

Slices = tuple[slice, slice, slice]


class Walk:
    """A FOV that visits the centre of an example, then the positions that the network's own POM reaches.

    Attributes
    ----------
    canvas_logit : float32 ndarray of shape (Z, Y, X)
        Predicted object map (POM) of the patch.
    moves : int64 ndarray of shape (3, 3)
        Moves tried so far. Rows: to positions 1, 2, and 3 or more deltas from the centre, counted along the axes.
        Columns: to the object and allowed by the POM, to the object but not allowed, allowed but not to the object.

    Notes
    -----
    ``fixed`` and ``faces`` try the example's moves in order, and take each one whose POM has reached the threshold by
    then. ``max_pred`` moves as inference does, but not out of the object. Unlike inference, it continues when the POM
    at the centre drops below the threshold, because there is still something to learn. Its patch is one delta larger on
    each side than the scored part. A new network adds to its own output at every visit; such a walk ends where a logit
    has run away, or loss and gradient would overflow.

    Source: google/ffn, whose walks visit the same positions (tests/unit/training/test_walk.py).
    """

    def __init__(self, example: Example, model: ModelConfig, train: TrainConfig) -> None:
        self.example = example
        self._fov_radius_zyx = model.fov_radius_zyx
        self._deltas_zyx = model.deltas_zyx
        self._policy = train.fov_policy
        self._patch = Box.from_shape(zyx(example.image.shape))
        self._center = zyx(n // 2 for n in example.image.shape)
        self._scored = Box.around(
            self._center, add(model.fov_radius_zyx, scale(model.deltas_zyx, train.fov_moves))
        ).slices()
        self.canvas_logit: np.ndarray = np.full(example.image.shape, PAD_LOGIT, np.float32)
        self.canvas_logit[self._center] = INIT_LOGIT
        self.moves = np.zeros((MAX_DISTANCE, 3), np.int64)
        moves = [] if self._policy == "max_pred" else [add(self._center, move) for move in example.moves_zyx]
        self.position_zyx: ZYX = self._center  # of the FOV
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
            pom_logit = self.canvas_logit[self.window]
            if not np.abs(pom_logit).max() <= RUNAWAY_LOGIT:  # or NaN
                return False
            self._movement.update(self.position_zyx, pom_logit)
        while (position := self._movement.pop()) is not None:
            if self._may_visit(position):
                self.position_zyx = position
                return True
        return False

    def state(self) -> tuple[ZYX, list[ZYX], list[ZYX]]:
        """Return the FOV's position, its queue and the positions it evaluated: the state besides canvas and moves."""
        return self.position_zyx, list(self._movement.queue), self._movement.evaluated

    def restore(
        self,
        canvas_logit: np.ndarray,
        moves: np.ndarray,
        position_zyx: ZYX,
        queue: Iterable[ZYX],
        evaluated: Iterable[ZYX],
    ) -> None:
        """Restore canvas, moves, and the result of `state`."""
        self.canvas_logit[:] = canvas_logit
        self.moves[:] = moves
        self.position_zyx = position_zyx
        self._movement = self._resume(queue, evaluated)

    def score(self) -> np.ndarray:
        """Compare the patch with its labels at the move threshold."""
        known = self.example.loss_weight[self._scored] > 0
        found = (self.canvas_logit[self._scored] >= MOVE_LOGIT) & known
        truth = (self.example.labels[self._scored] > 0.5) & known
        num_known, num_found, num_true, both = (np.count_nonzero(mask) for mask in (known, found, truth, found & truth))
        counts = (both, num_found - both, num_known - num_found - num_true + both, num_true - both)
        return np.array(counts, np.int64)

    def counts(self) -> np.ndarray:
        """Return `score` and `moves` in one int64 array of shape (13,)."""
        return np.concatenate([self.score(), self.moves.ravel()])

    def _resume(self, queue: Iterable[ZYX], evaluated: Iterable[ZYX]) -> FaceMaxMovement:
        return FaceMaxMovement(self._center, self._deltas_zyx, MOVE_LOGIT, queue, evaluated)

    def _may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV fits at `position_zyx` and the POM there is high enough by now; count the move."""
        if not self._patch.contains(Box.around(position_zyx, self._fov_radius_zyx)):
            return False
        allowed = bool(self.canvas_logit[position_zyx] >= MOVE_LOGIT)
        wanted = bool(self.example.labels[position_zyx] > 0.5)
        if (allowed or wanted) and self.example.loss_weight[position_zyx] > 0:
            self.moves[self._distance(position_zyx) - 1, 2 if not wanted else 0 if allowed else 1] += 1
        return allowed and (wanted or self._policy != "max_pred")

    def _distance(self, position_zyx: ZYX) -> int:
        """Deltas from the centre, counted along the axes."""
        offset_zyx = subtract(position_zyx, self._center)
        deltas = sum(round(abs(n) / delta) for n, delta in zip(offset_zyx, self._deltas_zyx, strict=True) if delta)
        return min(max(1, deltas), MAX_DISTANCE)
