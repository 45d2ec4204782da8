"""Which examples a lane trains on: fewer of the kinds in which the network has made few errors lately."""

from __future__ import annotations

import numpy as np

from ffn.training.data.examples import Example

NUM_KINDS = 10  # by the share of the patch that the object takes, as the partitions are; our choice, like the next one
NEWEST = 0.1  # weight of the newest walk in the errors of its kind


class ExampleChoice:
    """Takes every example of the kind with the most errors, and of each other kind a share in proportion to its errors.

    It draws nothing at random: a lane's choice follows from its own walks alone, so it is the same for any number of
    processes.

    Parameters
    ----------
    least_share : float or None
        Least share of the examples of a kind; None takes all.

    Attributes
    ----------
    state : float64 ndarray of shape (2, NUM_KINDS)
        For each kind: mean of 1 - F1 of its recent walks (NaN if there was none), and the part of an example that it
        may still take.
    """

    def __init__(self, least_share: float | None) -> None:
        self._least_share = least_share
        self.state = np.stack([np.full(NUM_KINDS, np.nan), np.zeros(NUM_KINDS)])

    def takes(self, example: Example) -> bool:
        """Whether to train on an example; ask once for each, in order."""
        if self._least_share is None:
            return True
        kind, credit = _kind(example), self.state[1]
        credit[kind] += max(self._least_share, self._relative_error(kind))
        if credit[kind] < 1:
            return False
        credit[kind] -= 1
        return True

    def learn(self, example: Example, score: np.ndarray) -> None:
        """Note what `ffn.training.walk.Walk.score` gave for the walk over an example."""
        if self._least_share is None:
            return
        tp, fp, _, fn = score
        error = (fp + fn) / max(1, 2 * tp + fp + fn)
        errors, kind = self.state[0], _kind(example)
        errors[kind] = error if np.isnan(errors[kind]) else errors[kind] + NEWEST * (error - errors[kind])

    def _relative_error(self, kind: int) -> float:
        """Error of a kind as a share of the largest one; 1 before its first walk."""
        errors = self.state[0]
        return 1.0 if np.isnan(errors[kind]) or not np.nanmax(errors) else errors[kind] / np.nanmax(errors)


def _kind(example: Example) -> int:
    return min(int(NUM_KINDS * np.mean(example.labels > 0.5)), NUM_KINDS - 1)
