"""The walk of the field of view (FOV) over one training example, with all of its state explicit."""

from __future__ import annotations

import numpy as np

from ffn.geometry import ZYX, Box, add, subtract
from ffn.training.examples import Example

INIT_ACTIVATION = 0.95  # POM at the central voxel (Januszewski et al. 2018, as in inference)
PAD_VALUE = 0.05
MOVE_THRESHOLD = 0.9

Slices = tuple[slice, slice, slice]


def logit(probability: float) -> np.float32:
    """Return ln(p / (1 - p)).

    Examples
    --------
    >>> round(float(logit(0.9)), 4)
    2.1972
    """
    return np.float32(np.log(probability / (1 - probability)))


class Walk:
    """A FOV that visits the centre of an example, then each neighbour that the network's own map has reached.

    Parameters
    ----------
    example : Example
        Patch of the size of the FOV plus one step on every side.
    fov_size_zyx : tuple of int
        Field of view, voxels.

    Attributes
    ----------
    canvas_logit : float32 ndarray of shape (Z, Y, X)
        Predicted object map (POM) of the patch.
    stop : int
        The stop the FOV is at: 0 is the centre, i is the i-th of the example's moves.
    """

    def __init__(self, example: Example, fov_size_zyx: ZYX) -> None:
        self.example = example
        self._fov_size_zyx = fov_size_zyx
        self._center_zyx: ZYX = tuple(n // 2 for n in example.image.shape)
        self.canvas_logit = np.full(example.image.shape, logit(PAD_VALUE), np.float32)
        self.canvas_logit[self._center_zyx] = logit(INIT_ACTIVATION)
        self.stop = 0

    @property
    def window(self) -> Slices:
        """Where the FOV lies in the patch."""
        half = (self._fov_size_zyx[0] // 2, self._fov_size_zyx[1] // 2, self._fov_size_zyx[2] // 2)
        return Box.from_shape(self._fov_size_zyx, subtract(self._position(self.stop), half)).slices()

    def write(self, pom_logit: np.ndarray) -> None:
        """Put the network's output, of the shape of the FOV, on the canvas."""
        self.canvas_logit[self.window] = pom_logit

    def advance(self) -> bool:
        """Go to the next neighbour whose POM has reached the move threshold; return False if none is left."""
        for stop in range(self.stop + 1, len(self.example.moves_zyx) + 1):
            if self.canvas_logit[self._position(stop)] >= logit(MOVE_THRESHOLD):
                self.stop = stop
                return True
        return False

    def score(self) -> np.ndarray:
        """Compare the whole patch with its labels.

        Returns
        -------
        int64 ndarray of shape (4,)
            True positives, false positives, true negatives, false negatives at the move threshold.
        """
        found, truth = self.canvas_logit >= logit(MOVE_THRESHOLD), self.example.labels > 0.5
        counts = (found & truth, found & ~truth, ~found & ~truth, ~found & truth)
        return np.array([np.count_nonzero(mask) for mask in counts], np.int64)

    def _position(self, stop: int) -> ZYX:
        """Centre of the FOV at a stop, voxels of the patch."""
        return add(self._center_zyx, self.example.moves_zyx[stop - 1] if stop else (0, 0, 0))
