"""Progress of long work: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

LOG_INTERVAL_SECONDS = 15.0

T = TypeVar("T")


class _Lines:
    """File that turns the carriage returns of a progress bar into whole lines, for logs."""

    def write(self, text: str) -> int:
        line = text.replace("\r", "").strip()
        if line:
            sys.stderr.write(line + "\n")
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


def progress_bar(total: float | None, description: str, unit: str = "it", done: int = 0) -> tqdm:
    """Return a tqdm bar on stderr; in a log it prints at most one line every 15 s.

    Parameters
    ----------
    total : float or None
        Amount of work in `unit`; None where it is not known.
    description : str
        What is being done.
    unit : str
        What is counted.
    done : int
        Amount that an earlier process has done; it does not count in the rate.
    """
    if sys.stderr.isatty():
        return tqdm(
            total=total, initial=done, desc=description, unit=unit, dynamic_ncols=True, mininterval=0.2, miniters=0
        )
    return tqdm(
        total=total,
        initial=done,
        desc=description,
        unit=unit,
        ascii=True,
        mininterval=LOG_INTERVAL_SECONDS,
        miniters=0,  # look at the clock at every update: units differ a lot in length
        file=_Lines(),
        bar_format="{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
    )


def track(items: Iterable[T], total: int | None, description: str, unit: str = "block") -> Iterator[T]:
    """Yield `items` and show how many are done.

    Parameters
    ----------
    items : iterable
        The work.
    total : int or None
        Number of items, None where unknown.
    description, unit : str
        What is being done and what is counted.
    """
    with progress_bar(total, description, unit) as bar:
        for item in items:
            yield item
            bar.update()
