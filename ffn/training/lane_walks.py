"""The walks of one process's lanes: the examples in flight, and the batch they form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ffn.geometry import ZYX
from ffn.training.prefetch import Prefetcher
from ffn.training.step import Batch, Outcome
from ffn.training.walk import Walk


class LaneWalks:
    """One walk for each lane; a lane takes its next example when its walk ends.

    Parameters
    ----------
    prefetcher : Prefetcher
        Source of examples, at the same positions.
    positions : mapping of int to int
        Position of the current example of each lane.
    fov_size_zyx : tuple of int
        Field of view, voxels.
    """

    def __init__(self, prefetcher: Prefetcher, positions: Mapping[int, int], fov_size_zyx: ZYX) -> None:
        self._prefetcher = prefetcher
        self._fov_size_zyx = fov_size_zyx
        self.positions = dict(positions)
        self._walks = {lane: self._new_walk(lane) for lane in self.positions}

    def batch(self) -> Batch:
        """Return the FOVs that all walks are at."""
        walks = self._walks.values()
        return Batch(
            image=np.stack([walk.example.image[walk.window] for walk in walks]),
            pom_logit=np.stack([walk.canvas_logit[walk.window] for walk in walks]),
            labels=np.stack([walk.example.labels[walk.window] for walk in walks]),
        )

    def proceed(self, outcome: Outcome) -> np.ndarray:
        """Write the outcome of a step to the canvases and move on.

        Returns
        -------
        int64 ndarray of shape (4,)
            Counts of the walks that ended, see `Walk.score`; one whose output is not finite has none.
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
        """Return the state for a checkpoint; examples are not in it, position and seed define them."""
        return {
            "positions": np.array(list(self.positions.values()), np.int64),
            "stops": np.array([walk.stop for walk in self._walks.values()], np.int64),
            "canvases_logit": np.stack([walk.canvas_logit for walk in self._walks.values()]),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over stops and canvases; the lanes must stand at the positions of `arrays`."""
        assert list(self.positions.values()) == arrays["positions"].tolist()
        for walk, stop, canvas in zip(self._walks.values(), arrays["stops"], arrays["canvases_logit"], strict=True):
            walk.stop = int(stop)
            walk.canvas_logit[:] = canvas

    def _new_walk(self, lane: int) -> Walk:
        return Walk(self._prefetcher.take(lane), self._fov_size_zyx)
