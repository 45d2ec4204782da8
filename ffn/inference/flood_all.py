"""Flood many subvolumes in one process, with checkpoints and a progress bar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable

from ffn.errors import SegmentError
from ffn.geometry import Box
from ffn.inference.checkpoint import Termination
from ffn.inference.executor import run_jobs
from ffn.inference.lanes import Lanes
from ffn.inference.subvolume import SubvolumeFlood
from ffn.progress import progress_bar

SHOW_SECONDS = 0.2


def flood_all(
    jobs: Iterable[SubvolumeFlood],
    lanes: Lanes,
    termination: Termination,
    threads: int,
    num_jobs: int,
    finished: Callable[[Box], None] | None = None,
) -> None:
    """Flood all subvolumes and write each as soon as it is done.

    Without `finished`, which records each subvolume, checkpoints are kept until all are done, so that a killed call
    does not flood a finished subvolume again.
    """
    progress, written = _Progress(num_jobs), list[SubvolumeFlood]()

    def save(num_fovs: int, active: Collection[SubvolumeFlood]) -> None:
        stops = termination.arrived  # it may arrive while states are being saved, and then counts after the next step
        for job in active:
            job.checkpoint.save_when_due(job.flood.state, stops)
        if stops and active:
            path = next(iter(active)).checkpoint.path
            raise SegmentError(f"{path}: stopped by SIGTERM, the state is saved. Run the same command to resume")
        progress.show(num_fovs, active)

    with contextlib.closing(progress):  # so that the line of an error is the last one
        for job in run_jobs(jobs, lanes, threads, save):
            if num_jobs > 1 and job.checkpoint.is_used and not finished:
                job.checkpoint.save(job.flood.state())
            job.write()
            if finished:
                finished(job.box)
                job.checkpoint.remove()
            progress.finish(job)
            job.leave()
            written += [] if finished else [job]
    for job in written:
        job.checkpoint.remove()


class _Progress:
    """A bar of the seeds decided, with FOVs/s, over all subvolumes that have begun."""

    def __init__(self, num_jobs: int) -> None:
        self._num_jobs = num_jobs
        self.num_finished = 0
        self._seeds = 0  # of finished subvolumes
        self._num_fovs = 0  # of this process
        self._start, self._due = time.monotonic(), 0.0
        self._bar = progress_bar(0, "segment", "seed")

    def finish(self, job: SubvolumeFlood) -> None:
        self.num_finished += 1
        self._seeds += len(job.flood.seeds)

    def show(self, num_fovs: int, active: Collection[SubvolumeFlood]) -> None:
        self._num_fovs += num_fovs
        now = time.monotonic()
        if now < self._due:  # formatting the text at every FOV would cost more than the flood itself
            return
        self._due = now + SHOW_SECONDS
        floods = [job.flood for job in active]
        self._bar.total = self._seeds + sum(len(flood.seeds) for flood in floods)
        rate = self._num_fovs / max(now - self._start, 1e-9)
        text = f"{self._num_fovs} FOVs, {rate:.1f} FOVs/s, {self.num_finished} of {self._num_jobs} subvolumes"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(self._seeds + sum(flood.cursor for flood in floods) - self._bar.n)

    def close(self) -> None:
        self._bar.update(max(0, self._seeds - self._bar.n))
        self._bar.close()
