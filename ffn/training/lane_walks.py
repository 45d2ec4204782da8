"""The walks of one process's lanes: its current examples, the batch that they form, and the next examples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import zyx
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example
from ffn.training.step import Batch, Outcome
from ffn.training.walk import NUM_COUNTS, Walk

DEPTH = 2  # examples ready per lane. A walk takes at least one step, so 1 would do if reading times did not vary


class Prefetcher:
    """Makes the next examples of each lane in one thread; HDF5 serialises reads anyway."""

    def __init__(self, make: Callable[[int, int], Example], positions: Mapping[int, int]) -> None:
        self._make = make
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="examples")
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


class LaneWalks:
    """One walk for each lane. When a walk ends, its lane takes the next example."""

    def __init__(
        self, prefetcher: Prefetcher, positions: Mapping[int, int], model: ModelConfig, train: TrainConfig
    ) -> None:
        self._prefetcher = prefetcher
        self._model = model
        self._train = train
        self.positions = dict(positions)
        self._counts = {lane: np.zeros(NUM_COUNTS, np.int64) for lane in self.positions}
        self._walks = {lane: self._walk_over(self._prefetcher.take(lane)) for lane in self.positions}

    def batch(self) -> Batch:
        """Return the current FOVs of all walks."""
        return stack_fovs(list(self._walks.values()))

    def proceed(self, outcome: Outcome) -> None:
        """Write the outcome of a step to the canvases and advance all walks.

        A walk that ends is counted, but not if its output is not finite.
        """
        for (lane, walk), pom_logit in zip(list(self._walks.items()), outcome.pom_logit, strict=True):
            broken = not np.isfinite(pom_logit).all()
            walk.write(pom_logit)
            if not broken and walk.advance():
                continue
            if not broken:
                self._counts[lane] += walk.counts()
            self.positions[lane] += 1
            self._walks[lane] = self._walk_over(self._prefetcher.take(lane))

    def take_counts(self) -> np.ndarray:
        """Return the counts of all walks that ended since the last call, see `Walk.counts`."""
        total = np.sum(list(self._counts.values()), axis=0)
        self._counts = {lane: np.zeros(NUM_COUNTS, np.int64) for lane in self._counts}
        return total

    def states(self, with_walks: bool = True) -> dict[int, dict[str, np.ndarray]]:
        """Return the state of each lane for a checkpoint. It holds no examples: positions and the seed define them.

        Without walks it has a few bytes, and a lane that is restored begins its example again.
        """
        states = {lane: {"position": np.array(at), "counts": self._counts[lane]} for lane, at in self.positions.items()}
        if with_walks:
            states = {lane: states[lane] | self._walk_state(walk) for lane, walk in self._walks.items()}
        return states

    def restore(self, states: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        """Restore what `states` returned for these lanes, which must already be at its positions."""
        assert self.positions == {lane: position_of(states[lane]) for lane in self._walks}
        for lane, walk in self._walks.items():
            state = states[lane]
            self._counts[lane] = np.array(state["counts"])
            if "canvas_logit" in state:
                queue, evaluated = map(zyx, state["queue_zyx"]), map(zyx, state["evaluated_zyx"])
                walk.restore(state["canvas_logit"], state["moves"], zyx(state["fov_zyx"]), queue, evaluated)

    @staticmethod
    def _walk_state(walk: Walk) -> dict[str, np.ndarray]:
        fov_zyx, queue, evaluated = walk.state()
        return {
            "canvas_logit": walk.canvas_logit,
            "moves": walk.moves,
            "fov_zyx": np.array(fov_zyx, np.int64),
            "queue_zyx": np.array(queue, np.int64).reshape(-1, 3),
            "evaluated_zyx": np.array(evaluated, np.int64).reshape(-1, 3),
        }

    def _walk_over(self, example: Example) -> Walk:
        return Walk(example, self._model, self._train)


def position_of(state: Mapping[str, np.ndarray]) -> int:
    """Return the position in the state of a lane."""
    return int(state["position"])


def stack_fovs(walks: Sequence[Walk]) -> Batch:
    """Return the current FOVs of `walks` as one batch."""
    windows = [(walk, walk.window) for walk in walks]
    return Batch(
        image=np.stack([walk.example.image[window] for walk, window in windows]),
        pom_logit=np.stack([walk.canvas_logit[window] for walk, window in windows]),
        labels=np.stack([walk.example.labels[window] for walk, window in windows]),
        loss_weight=np.stack([walk.example.loss_weight[window] for walk, window in windows]),
    )
