"""Lists of blocks that the steps of an export work on, in several threads or processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from ffn.geometry import Box
from ffn.io.block_log import Work


class BlockList(NamedTuple):
    """Blocks with different starts, what to do with each, and the name of the folder of their logs."""

    name: str
    blocks: Sequence[Box]
    work: Work


def threads(number: int) -> contextlib.AbstractContextManager[Executor]:
    """Return so many threads."""
    return ThreadPoolExecutor(number)


@contextlib.contextmanager
def processes(number: int) -> Iterator[Executor | None]:
    """Yield so many processes; None for this one, if one is enough. What they do can be pickled."""
    if number <= 1:
        yield None
        return
    # TensorStore has threads, and a forked process would inherit their locks.
    with ProcessPoolExecutor(number, get_context("spawn")) as pool:
        yield pool
