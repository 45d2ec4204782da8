"""Show the progress of long work: as a bar on a terminal, as occasional lines in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

LOG_INTERVAL_SECONDS = 15.0

T = TypeVar("T")


class _Lines:
    """File that turns the updates of a progress bar into lines of a log."""

    def write(self, text: str) -> int:
        line = text.replace("\r", "").strip()
        if line:
            sys.stderr.write(line + "\n")
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: float | None, description: str, unit: str, done: int = 0) -> tqdm:
    """Return a tqdm bar on stderr; in a log, it prints at most one line every 15 s."""
    looks: dict[str, Any] = {"dynamic_ncols": True, "mininterval": 0.2}
    if not sys.stderr.isatty():
        text = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
        looks = {"ascii": True, "mininterval": LOG_INTERVAL_SECONDS, "file": _Lines(), "bar_format": text}
    # It checks the clock at every update, because units take very different times.
    return tqdm(total=total, initial=done, desc=description, unit=unit, miniters=0, **looks)


def track(items: Iterable[T], total: int | None, description: str, unit: str = "block") -> Iterator[T]:
    """Yield `items` under a progress bar."""
    with progress_bar(total, description, unit) as bar:
        for item in items:
            yield item
            bar.update()
