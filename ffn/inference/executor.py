"""Flood many subvolumes in one process: each on a canvas of its own, as many at once as there are canvases."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ffn.errors import SegmentError
from ffn.inference.checkpoint import Termination
from ffn.inference.lanes import Lanes
from ffn.inference.subvolume import SubvolumeFlood
from ffn.progress import progress_bar

SHOW_SECONDS = 0.2
MOST_READERS = 8  # subvolumes that are searched for seeds at the same time; our choice


def flood_all(jobs: Sequence[SubvolumeFlood], lanes: Lanes, termination: Termination, threads: int) -> None:
    """Flood all subvolumes and write each as soon as it is done.

    Every subvolume is flooded object after object; those on the canvases advance together, one FOV at a time. So each
    gets what it would get alone. Checkpoints are kept until all are done, so that a call that was killed does not flood
    again what it had finished.

    Parameters
    ----------
    jobs : sequence of SubvolumeFlood
        Subvolumes, in the order in which they begin.
    lanes : Lanes
        Canvases.
    termination : Termination
        When it has arrived, all states are saved and the call ends, unless all subvolumes are done by then.
    threads : int
        Number of subvolumes that are read, and searched for seeds, while others are flooded.

    Raises
    ------
    SegmentError
        After SIGTERM, once the states are saved.
    """
    with ThreadPoolExecutor(threads) as pool:
        _Executor(jobs, lanes, termination, _Reader(jobs, pool, threads)).run()
    for job in jobs:
        job.checkpoint.remove()


class _Reader:
    """Reads a few subvolumes ahead, in order."""

    def __init__(self, jobs: Sequence[SubvolumeFlood], pool: ThreadPoolExecutor, ahead: int) -> None:
        self._waiting = deque(jobs)
        self._reading: deque[tuple[SubvolumeFlood, Future[None]]] = deque()
        self._pool = pool
        self._ahead = ahead

    @property
    def has_more(self) -> bool:
        """Whether `next` has not returned all subvolumes yet."""
        return bool(self._waiting or self._reading)

    def next(self, wait: bool) -> SubvolumeFlood | None:
        """Return the next subvolume; None if there is none, or, unless `wait`, if it is not read yet."""
        while self._waiting and len(self._reading) < self._ahead:
            job = self._waiting.popleft()
            self._reading.append((job, self._pool.submit(job.read)))
        if not self._reading or not (wait or self._reading[0][1].done()):
            return None
        job, read = self._reading.popleft()
        read.result()
        return job


class _Executor:
    """Keeps the canvases busy."""

    def __init__(self, jobs: Sequence[SubvolumeFlood], lanes: Lanes, termination: Termination, reader: _Reader) -> None:
        self._jobs = jobs
        self._lanes = lanes
        self._termination = termination
        self._reader = reader
        self._active: dict[int, SubvolumeFlood] = {}  # by the number of its canvas
        self._progress = _Progress(len(jobs))

    def run(self) -> None:
        """Flood all."""
        with contextlib.closing(self._progress):  # so that the line of an error is the last one
            while self._fill():
                growing = []
                for lane, job in list(self._active.items()):
                    if (grower := job.growing()) is not None:
                        growing.append(grower)
                    else:
                        self._finish(lane)
                self._progress.count(self._lanes.advance(growing))
                self._save()

    def _fill(self) -> bool:
        """Give free canvases to the subvolumes that are read; return whether there is anything left to flood."""
        for lane in range(self._lanes.size):
            if lane not in self._active and (job := self._reader.next(wait=not self._active)) is not None:
                job.enter(self._lanes, lane)
                self._active[lane] = job
        return bool(self._active)

    def _finish(self, lane: int) -> None:
        job = self._active.pop(lane)
        if len(self._jobs) > 1 and job.checkpoint.is_used:
            job.checkpoint.save(job.flood.state())
        job.write()
        self._progress.finish(job)
        job.leave()

    def _save(self) -> None:
        for job in self._active.values():
            job.checkpoint.save_when_due(job.flood.state, self._termination.arrived)
        if self._termination.arrived and (self._active or self._reader.has_more):
            path = next(iter(self._active.values()), self._jobs[0]).checkpoint.path
            raise SegmentError(f"{path}: stopped by SIGTERM, the state is saved. Run the same command to resume")
        self._progress.show(self._active.values())


class _Progress:
    """A bar of the seeds decided, with FOVs/s, over all subvolumes that have begun."""

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs
        self._num_finished = 0
        self._seeds = 0  # of finished subvolumes
        self._num_fovs = 0  # of this process
        self._start, self._due = time.monotonic(), 0.0
        self._bar = progress_bar(0, "segment", "seed")

    def count(self, num_fovs: int) -> None:
        self._num_fovs += num_fovs

    def finish(self, job: SubvolumeFlood) -> None:
        self._num_finished += 1
        self._seeds += len(job.flood.seeds)

    def show(self, active: Iterable[SubvolumeFlood]) -> None:
        now = time.monotonic()
        if now < self._due:  # formatting the text at every FOV would cost more than the flood itself
            return
        self._due = now + SHOW_SECONDS
        floods = [job.flood for job in active]
        self._bar.total = self._seeds + sum(len(flood.seeds) for flood in floods)
        rate = self._num_fovs / max(now - self._start, 1e-9)
        text = f"{self._num_fovs} FOVs, {rate:.1f} FOVs/s, {self._num_finished} of {self._num_jobs} subvolumes"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(self._seeds + sum(flood.cursor for flood in floods) - self._bar.n)

    def close(self) -> None:
        self._bar.update(max(0, self._seeds - self._bar.n))
        self._bar.close()
