"""Keep a few of many files open."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from types import TracebackType

from ffn.io.open import open_volume
from ffn.io.volume import Volume

MAX_OPEN = 16  # neighbours of one subvolume that lie ahead, with itself; each may hold its cache of chunks, 32 MiB


class VolumePool:
    """Volumes opened when they are asked for; the one not used for longest is closed when there are too many.

    Parameters
    ----------
    max_open : int
        Most volumes open at a time.
    """

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[str, tuple[Volume, ExitStack]] = OrderedDict()

    def __enter__(self) -> VolumePool:
        """Return the pool; leaving the ``with`` block closes everything."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all volumes."""
        while self._open:
            self._close_oldest()

    def open(self, spec: str) -> Volume:
        """Return the volume of `spec`; it stays open at least until another one is asked for.

        Raises
        ------
        VolumeError
            If nothing readable is there.
        """
        if spec not in self._open:
            if len(self._open) >= self._max_open:
                self._close_oldest()
            stack = ExitStack()
            self._open[spec] = stack.enter_context(open_volume(spec)), stack
        self._open.move_to_end(spec)
        return self._open[spec][0]

    def _close_oldest(self) -> None:
        _, (_, stack) = self._open.popitem(last=False)
        stack.close()
