"""Makes examples in the background while the network trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from ffn.training.data.examples import Example

DEPTH = 2  # examples ready per lane. A walk takes at least one step, so 1 would do if reading times did not vary


class Prefetcher:
    """Makes the next examples of each lane in one thread; HDF5 serialises reads anyway.

    Parameters
    ----------
    make : callable
        Returns the example at a lane and position.
    positions : mapping of int to int
        Start position of each lane.
    """

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and cancel the examples that nobody will take."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def take(self, lane: int) -> Example:
        """Return the lane's next example; errors from making it are raised here."""
        example = self._ready[lane].popleft().result()
        self._submit(lane)
        return example

    def _submit(self, lane: int) -> None:
        self._ready[lane].append(self._executor.submit(self._make, lane, self._next[lane]))
        self._next[lane] += 1
