"""Apply a function to many blocks, in several threads or processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

from ffn.geometry import Box
from ffn.io.block_lists import Spread, Work
from ffn.io.blocks import Learnt


def in_threads(number: int) -> Spread:
    """Return what applies a function in so many threads."""
    return partial(_in_threads, number)


def in_processes(number: int) -> Spread:
    """Return what applies a function, which can be pickled, in so many processes; in this one if one is enough."""
    return partial(_in_processes, number)


def _in_threads(number: int, work: Work, blocks: Sequence[Box]) -> Iterator[Learnt]:
    with ThreadPoolExecutor(number) as pool:
        yield from pool.map(work, blocks)


def _in_processes(number: int, work: Work, blocks: Sequence[Box]) -> Iterator[Learnt]:
    number = min(number, len(blocks))
    if number <= 1:
        yield from map(work, blocks)
        return
    # TensorStore has threads, and a forked process would inherit their locks.
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:
        yield from pool.map(work, blocks)
