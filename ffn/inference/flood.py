"""Flood filling: grow an object from every seed that is still free."""

from __future__ import annotations

import numpy as np

from ffn.config import SegmentConfig
from ffn.geometry import ZYX, voxels_in, zyx
from ffn.inference.canvas import Canvas
from ffn.inference.claims import Cells, Claims, Filling, GrownObject
from ffn.inference.grower import Arrays, ObjectGrower

SECOND_MIN_SEGMENT_UM3 = 0.0002  # in the second pass; our choice: objects in the gaps of the first are smaller


class FloodFill:
    """The sequential flood of the published FFN: one object after the other, in the order of the seeds.

    Floods of several subvolumes can advance together: `growing` says which object of each is next.
    """

    def __init__(self, canvas: Canvas, config: SegmentConfig, cells: Cells | None = None) -> None:
        self._canvas = canvas
        cells = cells or Cells()
        sizes = config.min_segment_um3, SECOND_MIN_SEGMENT_UM3
        self._sizes = [voxels_in(size, cells.voxel_size_zyx_nm) for size in sizes]
        self._max_fovs = config.max_fovs
        self.claims = Claims(config, canvas.reach, canvas.segmentation, cells)
        self.pass_number = 0  # before the first `begin`
        self.cursor = 0  # number of seeds that are decided
        self.seeds = np.empty((0, 3), np.int64)
        self._grower: ObjectGrower | None = None

    def begin(self, seeds: np.ndarray) -> None:
        """Start the next pass with `seeds`, int (N, 3), in their order; all earlier seeds must be decided."""
        self.seeds = np.asarray(seeds, np.int64).reshape(-1, 3)
        self.pass_number += 1
        self.cursor = 0
        self.claims.forget_rejections()

    def growing(self) -> ObjectGrower | None:
        """Decide seeds up to the first whose object has still to grow, and return it; None at the end of the pass."""
        while self.cursor < len(self.seeds):
            grower = self._grower or self._started()
            if grower is not None and grower.next_position() is not None:
                return grower
            if grower is not None:
                min_voxels = self._sizes[self.pass_number - 1]
                if self.claims.settle(GrownObject.harvest(grower, min_voxels), min_voxels, self.pass_number):
                    self._canvas.claim()
            self._grower = None
            self.cursor += 1
        return None

    def filling(self) -> Filling:
        """Return the result so far."""
        return self.claims.filling()

    def _started(self) -> ObjectGrower | None:
        """Start the object of the next seed, or count why none may start there."""
        seed: ZYX = zyx(self.seeds[self.cursor].tolist())
        objection = "outside" if self._canvas.is_refused(seed) else self.claims.objection(seed)
        if objection is not None:
            self.claims.refuse(seed, objection)
            return None
        self._grower = ObjectGrower(self._canvas, seed, self._max_fovs)
        return self._grower

    def state(self) -> Arrays:
        """Return everything needed to resume; the arrays are views, to be saved at once."""
        arrays = _prefixed("claims", self.claims.state())
        arrays["seeds"] = self.seeds
        arrays["place"] = np.array([self.pass_number, self.cursor])
        return arrays | (_prefixed("growing", self._grower.state()) if self._grower else {})

    def resume(self, arrays: Arrays) -> None:
        """Restore the result of `state`; the flood must not have begun."""
        self.seeds = arrays["seeds"]
        self.claims.resume(_below("claims", arrays))
        self.pass_number, self.cursor = arrays["place"].tolist()
        if growing := _below("growing", arrays):
            self._grower = ObjectGrower.resume(self._canvas, growing, self._max_fovs)


def _prefixed(path: str, arrays: Arrays) -> Arrays:
    return {f"{path}/{name}": array for name, array in arrays.items()}


def _below(path: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(f"{path}/"): array for name, array in arrays.items() if name.startswith(f"{path}/")}
