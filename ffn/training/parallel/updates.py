"""Which gradients make an update of the weights: the one rule of synchronous and asynchronous training."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, Literal, TypeVar

Payload = TypeVar("Payload")


@dataclass
class UpdateRule(Generic[Payload]):
    """An update is the mean of the first gradients that arrive; those from too old weights are dropped.

    Parameters
    ----------
    workers : int
        Number of workers; where it falls, updates need no more gradients than there are workers.
    gradients_per_update : int or "all"
        Gradients that make an update.
    max_staleness : int or None
        Updates that a gradient's weights may be behind the newest ones; None: any number.

    Attributes
    ----------
    version : int
        Updates so far. A worker that takes the weights now sends this number with its gradient.
    dropped : int
        Gradients that came too late.
    staleness : Counter of int
        Number of used gradients by the updates that their weights were behind.

    Notes
    -----
    With N workers: N gradients and staleness 0 is synchronous training, N - b and 0 has b backup workers, and one of
    any staleness is asynchronous. A worker whose gradient is used waits for the update if staleness must be 0, because
    another gradient from the same weights would keep the others out.

    Source: Chen et al. 2016, "Revisiting distributed synchronous SGD" (backup workers); Zhang et al. 2016,
    "Staleness-aware async-SGD" (between one gradient and all).

    Examples
    --------
    >>> rule = UpdateRule[str](workers=3, gradients_per_update=2, max_staleness=0)
    >>> rule.arrive(2, 0, "c"), rule.arrive(0, 0, "a"), rule.arrive(1, 0, "b"), rule.dropped
    (None, ['a', 'c'], None, 1)
    """

    workers: int
    gradients_per_update: int | Literal["all"] = "all"
    max_staleness: int | None = 0
    version: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    staleness: Counter[int] = field(default_factory=Counter, init=False)
    _gathered: list[tuple[int, Payload]] = field(default_factory=list, init=False, repr=False)

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of used gradients."""
        return sum(age * number for age, number in self.staleness.items()) / max(1, self.staleness.total())

    @property
    def needed(self) -> int:
        """Gradients that the next update needs."""
        return self.workers if self.gradients_per_update == "all" else min(self.gradients_per_update, self.workers)

    @property
    def waiting(self) -> set[int]:
        """Workers that must not begin another gradient before the next update."""
        return {worker for worker, _ in self._gathered} if self.max_staleness == 0 else set()

    def arrive(self, worker: int, version: int, payload: Payload) -> list[Payload] | None:
        """Take a worker's gradient from weights of this version; return those of an update that it completes.

        They are in the order of workers, so that their sum does not depend on which came first.
        """
        staleness = self.version - version
        if self.max_staleness is not None and staleness > self.max_staleness:
            self.dropped += 1
            return None
        self.staleness[staleness] += 1
        self._gathered.append((worker, payload))
        return self._completed()

    def leave(self, workers: int) -> list[Payload] | None:
        """Expect so many workers less; return the gradients of an update that this completes."""
        self.workers -= workers
        return self._completed() if self._gathered else None

    def _completed(self) -> list[Payload] | None:
        if len(self._gathered) < self.needed:
            return None
        complete = [payload for _, payload in sorted(self._gathered, key=itemgetter(0))]
        self._gathered.clear()
        self.version += 1
        return complete
