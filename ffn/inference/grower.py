"""Grow objects, each on its own canvas, several at a time through one batched network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ffn.config import SegmentConfig
from ffn.geometry import ZYX, Box, zyx
from ffn.inference.canvas import Canvas
from ffn.inference.engine import Engine
from ffn.inference.movement import FaceMaxMovement

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Limits:
    """Where an object stops growing, whatever it has then is kept; None is no limit."""

    max_fovs: int | None = None
    max_voxels: int | None = None

    @classmethod
    def of(cls, config: SegmentConfig) -> Limits:
        """Take the limits of the configuration."""
        return cls(config.max_fovs, config.max_object_voxels)


class ObjectGrower:
    """One object on its way from a seed to the end of its queue.

    Parameters
    ----------
    canvas : Canvas
        Cleared for this object; it shall serve no other until this one is done.
    seed_zyx : tuple of int
        A free voxel in the canvas's reach.
    deltas_zyx : tuple of int
        FOV step.
    limits : Limits
        Where to stop early.

    Attributes
    ----------
    limited : bool
        Whether a limit has ended it.
    """

    def __init__(self, canvas: Canvas, seed_zyx: ZYX, deltas_zyx: ZYX, limits: Limits | None = None) -> None:
        canvas.start(seed_zyx)
        self.canvas = canvas
        self.seed_zyx = seed_zyx
        self.limited = False
        self._movement = FaceMaxMovement(seed_zyx, deltas_zyx, canvas.thresholds.move)
        self._limits = limits or Limits()
        self._next: ZYX | None = None
        self._num_voxels = int(self.covers(np.array([seed_zyx]))[0])

    @property
    def num_fovs(self) -> int:
        """Network evaluations so far."""
        return len(self._movement.evaluated)

    @property
    def evaluated(self) -> np.ndarray:
        """Positions evaluated so far, int64 (N, 3)."""
        return np.array(self._movement.evaluated, np.int64).reshape(-1, 3)

    @property
    def is_strong(self) -> bool:
        """Whether the seed voxel still belongs to its own object."""
        return self.canvas.is_strong(self.seed_zyx)

    def covers(self, points: np.ndarray) -> np.ndarray:
        """Return for each row z, y, x of `points` whether the object holds that voxel now."""
        return self.canvas.covers(points)

    def next_position(self) -> ZYX | None:
        """Return where the network has to be evaluated next; None when the object has grown.

        Asking again gives the same answer, unless the voxel has been taken in between.
        """
        while self._next is None or not self.canvas.may_visit(self._next):
            self._next = self._movement.pop()
            if self._next is None:
                return None
        if not self.is_strong:
            return None
        self.limited = self._at_limit()
        return None if self.limited else self._next

    def put(self, pom_logit: np.ndarray) -> None:
        """Take the network's answer at `next_position` (float32 of the FOV's shape, changed in place)."""
        assert self._next is not None
        position, self._next = self._next, None
        before = self._count(position)
        self._movement.update(position, self.canvas.write(position, pom_logit))
        self._num_voxels += self._count(position) - before

    def state(self) -> Arrays:
        """Return everything needed to go on from here, as arrays."""
        box, pom_logit = self.canvas.visited_pom()
        queue = [*([] if self._next is None else [self._next]), *self._movement.queue]
        return {
            "seed": np.array(self.seed_zyx),
            "visited": np.array([box.start, box.stop]),
            "pom_logit": pom_logit,
            "queue": np.array(queue, np.int64).reshape(-1, 3),
            "evaluated": self.evaluated,
        }

    @classmethod
    def resume(cls, canvas: Canvas, state: Arrays, deltas_zyx: ZYX, limits: Limits) -> ObjectGrower:
        """Put an object on a canvas as `state` described it."""
        grower = cls(canvas, zyx(state["seed"]), deltas_zyx, limits)
        start, stop = state["visited"]
        canvas.resume(Box(zyx(start), zyx(stop)), state["pom_logit"])
        queue, evaluated = (map(zyx, state[name].tolist()) for name in ("queue", "evaluated"))
        grower._movement = FaceMaxMovement(grower.seed_zyx, deltas_zyx, canvas.thresholds.move, queue, evaluated)
        if limits.max_voxels is not None:
            grower._num_voxels = int(np.count_nonzero(canvas.object_mask()[1]))
        return grower

    def _at_limit(self) -> bool:
        fovs, voxels = self._limits.max_fovs, self._limits.max_voxels
        return (fovs is not None and self.num_fovs >= fovs) or (voxels is not None and self._num_voxels > voxels)

    def _count(self, position: ZYX) -> int:
        """Voxels of the object in one FOV; 0 where nobody asks, because counting costs time at every evaluation."""
        if self._limits.max_voxels is None:
            return 0
        pom_logit = self.canvas.pom_logit[self.canvas.fov(position).slices()]
        return int(np.count_nonzero(pom_logit >= self.canvas.thresholds.segment))


class FovBatch:
    """The network for up to `size` FOVs of different objects at once.

    Parameters
    ----------
    engine : Engine
        Built for batches of up to `size`.
    fov_size_zyx : tuple of int
        What the network sees.
    size : int
        FOVs per call at most.
    """

    def __init__(self, engine: Engine, fov_size_zyx: ZYX, size: int = 1) -> None:
        self.size = size
        self._engine = engine
        self._image = np.empty((size, *fov_size_zyx), np.float32)
        self._pom_logit = np.empty_like(self._image)

    def advance(self, growers: Iterable[ObjectGrower]) -> int:
        """Evaluate one FOV of each of the first `size` objects that still grow; return how many there were."""
        growing: list[ObjectGrower] = []
        for grower in growers:
            position = grower.next_position() if len(growing) < self.size else None
            if position is not None:
                self._image[len(growing)], self._pom_logit[len(growing)] = grower.canvas.read(position)
                growing.append(grower)
        if growing:
            answers = self._engine.predict(self._image[: len(growing)], self._pom_logit[: len(growing)])
            for grower, answer in zip(growing, answers, strict=True):
                grower.put(answer)
        return len(growing)


def grow(growers: Sequence[ObjectGrower], batch: FovBatch) -> None:
    """Grow independent objects in lockstep to their ends; their canvases then hold them.

    Parameters
    ----------
    growers : sequence of ObjectGrower
        Each on a canvas of its own.
    batch : FovBatch
        The network; more objects than it holds take turns.
    """
    while batch.advance(growers):
        pass
