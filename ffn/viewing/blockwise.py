"""Apply a function to many blocks or shards, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], items: Sequence[T], processes: int) -> Iterator[R]:
    """Yield what `work` returns for each item, in their order; in several processes if there are several items."""
    processes = min(processes, len(items))
    if processes <= 1:
        yield from map(work, items)
        return
    # TensorStore has threads, and a forked process would inherit their locks.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(work, items)
