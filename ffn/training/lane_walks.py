"""The walks of one process's lanes: its current examples, and the batch that they form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, zyx
from ffn.training.config import TrainConfig
from ffn.training.data.prefetch import Prefetcher
from ffn.training.step import Batch, Outcome
from ffn.training.walk import Walk


class LaneWalks:
    """One walk for each lane. When a walk ends, its lane takes the next example.

    Parameters
    ----------
    prefetcher : Prefetcher
        Source of examples, at the same positions.
    positions : mapping of int to int
        Position of each lane's current example.
    model : ModelConfig
        FOV and deltas.
    train : TrainConfig
        FOV policy.
    """

    def __init__(
        self, prefetcher: Prefetcher, positions: Mapping[int, int], model: ModelConfig, train: TrainConfig
    ) -> None:
        self._prefetcher = prefetcher
        self._model = model
        self._train = train
        self.positions = dict(positions)
        self._walks = {lane: self._new_walk(lane) for lane in self.positions}

    def batch(self) -> Batch:
        """Return the current FOVs of all walks."""
        return stack_fovs(list(self._walks.values()))

    @property
    def first(self) -> Walk:
        """The walk of the first lane, for pictures."""
        return next(iter(self._walks.values()))

    def proceed(self, outcome: Outcome) -> np.ndarray:
        """Write the outcome of a step to the canvases and advance all walks.

        Returns
        -------
        int64 ndarray of shape (4,)
            Counts of the walks that ended, see `Walk.score`. A walk ends uncounted if its output is not finite.
        """
        counts = np.zeros(4, np.int64)
        for (lane, walk), pom_logit in zip(list(self._walks.items()), outcome.pom_logit, strict=True):
            broken = not np.isfinite(pom_logit).all()
            walk.write(pom_logit)
            if not broken and walk.advance():
                continue
            if not broken:
                counts += walk.score()
            self.positions[lane] += 1
            self._walks[lane] = self._new_walk(lane)
        return counts

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state for a checkpoint. It holds no examples: positions and the random seed define them."""
        fovs, queues, evaluated = zip(*(walk.state() for walk in self._walks.values()), strict=True)
        return {
            "positions": np.array(list(self.positions.values()), np.int64),
            "canvases_logit": np.stack([walk.canvas_logit for walk in self._walks.values()]),
            "fovs_zyx": np.array(fovs, np.int64),
            "queues_zyx": _table(queues),
            "evaluated_zyx": _table(evaluated),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restore what `arrays` returned; the lanes must already be at its positions."""
        assert list(self.positions.values()) == arrays["positions"].tolist()
        for number, walk in enumerate(self._walks.values()):
            walk.restore(
                arrays["canvases_logit"][number],
                zyx(arrays["fovs_zyx"][number]),
                _rows(arrays["queues_zyx"], number),
                _rows(arrays["evaluated_zyx"], number),
            )

    def _new_walk(self, lane: int) -> Walk:
        return Walk(self._prefetcher.take(lane), self._model, self._train)


def stack_fovs(walks: Sequence[Walk]) -> Batch:
    """Return the current FOVs of `walks` as one batch."""
    windows = [(walk, walk.window) for walk in walks]
    return Batch(
        image=np.stack([walk.example.image[window] for walk, window in windows]),
        pom_logit=np.stack([walk.canvas_logit[window] for walk, window in windows]),
        labels=np.stack([walk.example.labels[window] for walk, window in windows]),
        loss_weight=np.stack([walk.example.loss_weight[window] for walk, window in windows]),
    )


def _table(positions: Sequence[list[ZYX]]) -> np.ndarray:
    """Join lists of different lengths in one int64 array of shape (N, 4): number of the list, z, y, x."""
    rows = [(number, *position) for number, one_list in enumerate(positions) for position in one_list]
    return np.array(rows, np.int64).reshape(-1, 4)


def _rows(table: np.ndarray, number: int) -> list[ZYX]:
    return [zyx(row) for row in table[table[:, 0] == number, 1:]]
