"""Keep only a few of many files open."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from types import TracebackType

from ffn.io.open import open_segmentation
from ffn.io.volume import Volume

MAX_OPEN = 16  # a subvolume and its neighbours further on; each may hold a chunk cache of 32 MiB


class VolumePool:
    """Open segmentations on demand, and close the least recently used one when there are too many."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[str, tuple[Volume, ExitStack]] = OrderedDict()

    def __enter__(self) -> VolumePool:
        """Return the pool. Leaving the ``with`` block closes all volumes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all volumes."""
        while self._open:
            self._close_oldest()

    def open(self, spec: str) -> Volume:
        """Return the volume of `spec`. It stays open at least until the next call."""
        if spec not in self._open:
            if len(self._open) >= self._max_open:
                self._close_oldest()
            stack = ExitStack()
            self._open[spec] = stack.enter_context(open_segmentation(spec)), stack
        self._open.move_to_end(spec)
        return self._open[spec][0]

    def _close_oldest(self) -> None:
        _, (_, stack) = self._open.popitem(last=False)
        stack.close()
