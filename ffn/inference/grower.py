"""An object that grows on its canvas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ffn.geometry import ZYX, Box, zyx
from ffn.inference.canvas import Canvas
from ffn.inference.movement import FaceMaxMovement

Arrays = dict[str, np.ndarray]


class ObjectGrower:
    """An object that grows from its seed until no position is left."""

    def __init__(self, canvas: Canvas, seed_zyx: ZYX, max_fovs: int | None = None) -> None:
        canvas.start(seed_zyx)
        self.canvas = canvas
        self.seed_zyx = seed_zyx
        self.limited = False  # whether `max_fovs` has stopped it
        self._movement = FaceMaxMovement(seed_zyx, canvas.deltas_zyx, inside=canvas.inside)
        self._max_fovs = max_fovs
        self._next: ZYX | None = None
        self._elsewhere: Callable[[], Sequence[ZYX]] | None = None  # fetches the queue from where `leap` left it

    @property
    def num_fovs(self) -> int:
        """Number of network evaluations so far."""
        return len(self._movement.evaluated)

    @property
    def evaluated(self) -> np.ndarray:
        """Positions evaluated so far, an int64 array of shape (N, 3)."""
        return np.array(self._movement.evaluated, np.int64).reshape(-1, 3)

    @property
    def is_strong(self) -> bool:
        """Whether the object still includes its seed."""
        return self.canvas.is_strong(self.seed_zyx)

    @property
    def num_left(self) -> int | None:
        """Number of network evaluations before the object is `limited`, None without a limit."""
        return None if self._max_fovs is None else self._max_fovs - self.num_fovs

    @property
    def queue(self) -> list[ZYX]:
        """Positions to go to, the next one first."""
        if self._elsewhere:
            return list(self._elsewhere())
        return [*([] if self._next is None else [self._next]), *self._movement.queue]

    def next_position(self) -> ZYX | None:
        """Return the next position to evaluate, None when the object has grown.

        A second call returns the same position, unless another object has taken the voxel since.
        """
        while self._next is None or not self.canvas.may_visit(self._next):
            self._next = self._movement.pop()
            if self._next is None:
                return None
        if not self.is_strong:
            return None
        self.limited = self._max_fovs is not None and self.num_fovs >= self._max_fovs
        return None if self.limited else self._next

    def put(self, answer: np.ndarray) -> None:
        """Write the network's answer at `next_position` to the canvas, and queue the moves from there."""
        assert self._next is not None
        position, self._next = self._next, None
        self._movement.follow(position, self.canvas.put(position, answer))

    def leap(self, evaluated: Iterable[ZYX], following: ZYX | None, queue: Callable[[], Sequence[ZYX]]) -> None:
        """Take over FOVs that were evaluated, written and followed elsewhere, where the queue stays."""
        self._movement.evaluated.extend(evaluated)
        self._movement.queue.clear()
        self._next, self._elsewhere = following, queue

    def state(self) -> Arrays:
        """Return everything needed to resume, as arrays."""
        box, pom_logit = self.canvas.visited_pom()
        return {
            "seed": np.array(self.seed_zyx),
            "visited": np.array([box.start, box.stop]),
            "pom_logit": pom_logit,
            "queue": np.array(self.queue, np.int64).reshape(-1, 3),
            "evaluated": self.evaluated,
        }

    @classmethod
    def resume(cls, canvas: Canvas, state: Arrays, max_fovs: int | None = None) -> ObjectGrower:
        """Restore the result of `state` on `canvas`."""
        grower = cls(canvas, zyx(state["seed"]), max_fovs)
        start, stop = state["visited"]
        canvas.resume(Box(zyx(start), zyx(stop)), state["pom_logit"])
        queue, evaluated = (map(zyx, state[name].tolist()) for name in ("queue", "evaluated"))
        grower._movement = FaceMaxMovement(grower.seed_zyx, canvas.deltas_zyx, queue, evaluated, canvas.inside)
        return grower
