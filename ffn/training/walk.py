"""The walks of the field of view (FOV) over training examples, one for each lane of a process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, add, scale, zyx
from ffn.inference.canvas import logit
from ffn.inference.movement import FaceMaxMovement, ScoredOffset, face_max_offsets
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example
from ffn.training.step import Batch

INIT_LOGIT = logit(0.95)  # POM at the central voxel (Januszewski et al. 2018, as in inference)
PAD_LOGIT = logit(0.05)
MOVE_LOGIT = logit(0.9)
RUNAWAY_LOGIT = 100.0  # our choice; trained networks stay below 15 on FIB-25

NUM_COUNTS = 4  # of voxels, see `Walk.score`
DEPTH = 2  # examples ready per lane. A walk takes at least one step, so 1 would do if reading times did not vary
MOST_THREADS = 8  # that make examples; our choice

Slices = tuple[slice, slice, slice]


class Walk:
    """A FOV that visits the centre of an example, then the positions that the network's own POM reaches.

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
        self._patch = Box.from_shape(zyx(example.kinds.shape))
        self._center = zyx(n // 2 for n in example.kinds.shape)
        self._scored = Box.around(
            self._center, add(model.fov_radius_zyx, scale(model.deltas_zyx, train.fov_moves))
        ).slices()
        self._put()
        moves = [] if self._policy == "max_pred" else [add(self._center, move) for move in example.moves_zyx]
        self.position_zyx: ZYX = self._center  # of the FOV
        self._movement = self._resume(moves, [])

    @property
    def window(self) -> Slices:
        """Where the FOV lies in the patch."""
        return Box.around(self.position_zyx, self._fov_radius_zyx).slices()

    @property
    def canvas_logit(self) -> np.ndarray:
        """Predicted object map (POM) of the patch, float32 (Z, Y, X)."""
        return self._canvas_logit

    def write(self, answer: np.ndarray) -> bool:
        """Write the network's output, which has the shape of the FOV, to the canvas; return whether it is finite."""
        self._canvas_logit[self.window] = answer
        self._peak = float(np.abs(answer).max())
        return bool(np.isfinite(self._peak))

    def advance(self) -> bool:
        """Move to the next position that the POM has reached; return False if none is left."""
        if not self._peak <= RUNAWAY_LOGIT:  # or NaN
            return False
        if self._policy == "max_pred":
            self._movement.follow(self.position_zyx, self._face_moves())
        while (position := self._movement.pop()) is not None:
            if self._may_visit(position):
                self.position_zyx = position
                return True
        return False

    def state(self) -> dict[str, np.ndarray]:
        """Return the POM, the FOV's position, its queue and the positions it evaluated, for a checkpoint."""
        return {
            "canvas_logit": self.canvas_logit,
            "fov_zyx": np.array(self.position_zyx, np.int64),
            "queue_zyx": np.array(self._movement.queue, np.int64).reshape(-1, 3),
            "evaluated_zyx": np.array(self._movement.evaluated, np.int64).reshape(-1, 3),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `state`."""
        self._put(state["canvas_logit"])
        self.position_zyx = zyx(state["fov_zyx"])
        self._movement = self._resume(map(zyx, state["queue_zyx"]), map(zyx, state["evaluated_zyx"]))

    def score(self) -> np.ndarray:
        """Count true and false positives, true and false negatives of the patch at the move threshold, int64 (4,)."""
        known = self.example.loss_weight(self._scored) > 0
        found = (self.canvas_logit[self._scored] >= MOVE_LOGIT) & known
        truth = (self.example.labels(self._scored) > 0.5) & known
        num_known, num_found, num_true, both = (np.count_nonzero(mask) for mask in (known, found, truth, found & truth))
        return np.array((both, num_found - both, num_known - num_found - num_true + both, num_true - both), np.int64)

    def _resume(self, queue: Iterable[ZYX], evaluated: Iterable[ZYX]) -> FaceMaxMovement:
        return FaceMaxMovement(self._center, self._deltas_zyx, queue, evaluated)

    def _may_visit(self, position_zyx: ZYX) -> bool:
        """Whether the FOV fits at `position_zyx` and the POM there is high enough by now."""
        if not self._patch.contains(Box.around(position_zyx, self._fov_radius_zyx)):
            return False
        wanted = self._policy != "max_pred" or self.example.is_object(position_zyx)
        return wanted and self._logit(position_zyx) >= MOVE_LOGIT

    def _put(self, canvas_logit: np.ndarray | None = None) -> None:
        """Begin with a POM; by default, one whose centre alone is object."""
        self._canvas_logit = np.full(self.example.kinds.shape, PAD_LOGIT, np.float32)
        self._canvas_logit[self._center] = INIT_LOGIT
        if canvas_logit is not None:
            self._canvas_logit[:] = canvas_logit

    def _face_moves(self) -> list[ScoredOffset]:
        return face_max_offsets(self._canvas_logit[self.window], self._deltas_zyx, MOVE_LOGIT)

    def _logit(self, position_zyx: ZYX) -> float:
        return float(self._canvas_logit[position_zyx])


class Prefetcher:
    """Makes the next examples of each lane, in threads; each depends on its lane and position alone."""

    def __init__(self, make: Callable[[int, int], Example], positions: Mapping[int, int]) -> None:
        self._make = make
        threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="examples")
        self._next = dict(positions)
        self._ready: dict[int, deque[Future[Example]]] = {lane: deque() for lane in positions}

    def __enter__(self) -> Prefetcher:
        """Start to make the first examples."""
        for _ in range(DEPTH):
            for lane in self._ready:
                self._submit(lane)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and cancel the examples that were not taken."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def take(self, lane: int) -> Example:
        """Return the lane's next example; errors from making it are raised here."""
        example = self._ready[lane].popleft().result()
        self._submit(lane)
        return example

    def _submit(self, lane: int) -> None:
        self._ready[lane].append(self._executor.submit(self._make, lane, self._next[lane]))
        self._next[lane] += 1


class HostPatches:
    """Examples and POMs in memory."""

    def __init__(self, model: ModelConfig, train: TrainConfig) -> None:
        self._model, self._train = model, train

    def walk(self, lane: int, example: Example) -> Walk:
        """Begin the walk of the lane of this number among those of the process."""
        return Walk(example, self._model, self._train)

    def batch(self, walks: Sequence[Walk]) -> Any:
        """Return the current FOVs of all walks for `Learner.step`."""
        return stack_fovs(walks)


class LaneWalks:
    """One walk for each lane. When a walk ends, its lane takes the next example."""

    def __init__(self, prefetcher: Prefetcher, positions: Mapping[int, int], patches: HostPatches) -> None:
        self._prefetcher = prefetcher
        self._patches = patches
        self._numbers = {lane: number for number, lane in enumerate(positions)}
        self.positions = dict(positions)
        self._counts = {lane: np.zeros(NUM_COUNTS, np.int64) for lane in self.positions}
        self._walks = {lane: self._next_walk(lane) for lane in self.positions}

    def batch(self) -> Any:
        """Return the current FOVs of all walks."""
        return self._patches.batch(list(self._walks.values()))

    def proceed(self, answers: np.ndarray) -> None:
        """Write the answers of a step, one for each FOV, to the canvases and advance all walks.

        A walk that ends is counted, but not if its output is not finite.
        """
        for (lane, walk), answer in zip(list(self._walks.items()), answers, strict=True):
            if walk.write(answer):
                if walk.advance():
                    continue
                self._counts[lane] += walk.score()
            self.positions[lane] += 1
            self._walks[lane] = self._next_walk(lane)

    def take_counts(self) -> np.ndarray:
        """Return the counts of all walks that ended since the last call, see `Walk.score`."""
        total = np.sum(list(self._counts.values()), axis=0)
        self._counts = {lane: np.zeros(NUM_COUNTS, np.int64) for lane in self._counts}
        return total

    def states(self, with_walks: bool = True) -> dict[int, dict[str, np.ndarray]]:
        """Return the state of each lane for a checkpoint. It holds no examples: positions and the seed define them.

        Without walks it has a few bytes, and a lane that is restored begins its example again.
        """
        states = {lane: {"position": np.array(at), "counts": self._counts[lane]} for lane, at in self.positions.items()}
        if with_walks:
            states = {lane: states[lane] | walk.state() for lane, walk in self._walks.items()}
        return states

    def restore(self, states: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        """Restore what `states` returned for these lanes, which must already be at its positions."""
        assert self.positions == {lane: int(states[lane]["position"]) for lane in self._walks}
        for lane, walk in self._walks.items():
            self._counts[lane] = np.array(states[lane]["counts"])
            if "canvas_logit" in states[lane]:
                walk.restore(states[lane])

    def _next_walk(self, lane: int) -> Walk:
        return self._patches.walk(self._numbers[lane], self._prefetcher.take(lane))


def stack_fovs(walks: Sequence[Walk]) -> Batch:
    """Return the current FOVs of `walks` as one batch."""
    windows = [(walk, walk.window) for walk in walks]
    return Batch(
        image=np.stack([walk.example.image(window) for walk, window in windows]),
        pom_logit=np.stack([walk.canvas_logit[window] for walk, window in windows]),
        labels=np.stack([walk.example.labels(window) for walk, window in windows]),
        loss_weight=np.stack([walk.example.loss_weight(window) for walk, window in windows]),
    )
