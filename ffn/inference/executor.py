"""Grow objects on several canvases at once: each job on its own canvas, one object after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, Protocol, TypeVar

from ffn.inference.grower import ObjectGrower
from ffn.inference.lanes import MOST_READERS, Lanes


class CanvasJob(Protocol):
    """Objects that grow one after the other in one array."""

    def read(self) -> None:
        """Read the inputs and find the seeds. CPU-bound; uses no canvas."""
        ...

    def enter(self, lanes: Lanes, lane: int) -> None:
        """Begin on a canvas."""
        ...

    def growing(self) -> ObjectGrower | None:
        """Return the object that grows next, None when all have grown; the canvas is then another job's."""
        ...


J = TypeVar("J", bound=CanvasJob)


def run_jobs(
    jobs: Iterable[J],
    lanes: Lanes,
    threads: int,
    after_step: Callable[[int, Collection[J]], None] = lambda num_fovs, active: None,
) -> Iterator[J]:
    """Yield each job when all its objects have grown.

    The jobs on the canvases advance together, one FOV at a time. Each gets the same result as alone.
    """
    threads = min(MOST_READERS, threads, lanes.size)
    with ThreadPoolExecutor(threads) as pool:
        reader, active = _Reader(jobs, pool, threads), dict[int, J]()
        while _fill(active, lanes, reader):
            growing = []
            for lane, job in list(active.items()):
                if (grower := job.growing()) is not None:
                    growing.append(grower)
                else:
                    yield active.pop(lane)
            after_step(lanes.advance(growing), active.values())


class _Reader(Generic[J]):
    """Reads a few jobs ahead, in order."""

    def __init__(self, jobs: Iterable[J], pool: ThreadPoolExecutor, ahead: int) -> None:
        self._waiting = iter(jobs)
        self._reading: deque[tuple[J, Future[None]]] = deque()
        self._pool = pool
        self._ahead = ahead

    def next(self, wait: bool) -> J | None:
        """Return the next job; None if there is none, or, unless `wait`, if it is not read yet."""
        for job in islice(self._waiting, self._ahead - len(self._reading)):
            self._reading.append((job, self._pool.submit(job.read)))
        if not self._reading or not (wait or self._reading[0][1].done()):
            return None
        job, read = self._reading.popleft()
        read.result()
        return job


def _fill(active: dict[int, J], lanes: Lanes, reader: _Reader[J]) -> bool:
    """Give free canvases to the jobs that are read; return whether any job is on one."""
    for lane in range(lanes.size):
        if lane not in active and (job := reader.next(wait=not active)) is not None:
            job.enter(lanes, lane)
            active[lane] = job
    return bool(active)
