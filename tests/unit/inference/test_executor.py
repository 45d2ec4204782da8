"""Jobs share a few canvases: each is read before it begins, and a canvas that becomes free is taken again."""

from concurrent.futures import Future

import pytest

from ffn.inference import executor
from ffn.inference.executor import run_jobs


class Steps:
    """Canvases that only count."""

    def __init__(self, size):
        self.size, self.busy = size, []

    def advance(self, growers):
        for job in growers:
            job.left -= 1
        self.busy.append("".join(job.name for job in growers))
        return len(growers)


class Countdown:
    """A job that takes a number of FOVs."""

    def __init__(self, name, num_fovs):
        self.name, self.left, self.is_read, self.lane = name, num_fovs, False, None

    def read(self):
        self.is_read = True

    def enter(self, lanes, lane):
        assert self.is_read
        self.lane = lane

    def growing(self):
        return self if self.left else None


class AtOnce:
    """A pool that has read a job as soon as it is asked to."""

    def __init__(self, threads):
        self.threads = threads

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, read):
        done = Future()
        done.set_result(read())
        return done


@pytest.mark.parametrize("threads", [1, 3])
def test_a_free_canvas_goes_to_the_next_job_and_the_last_steps_do_not_fill_the_batch(threads, monkeypatch):
    monkeypatch.setattr(executor, "ThreadPoolExecutor", AtOnce)
    lanes, jobs = Steps(2), [Countdown(name, num_fovs) for name, num_fovs in zip("abcde", (2, 5, 0, 3, 1), strict=True)]
    counted, done = [], []
    for job in run_jobs(jobs, lanes, threads, lambda num_fovs, active: counted.append((num_fovs, len(active)))):
        assert job.left == 0
        done.append(job.name)
    assert done == list("acbde") and [job.lane for job in jobs] == [0, 1, 0, 0, 1]
    assert lanes.busy == ["ab", "ab", "b", "b", "bd", "d", "de", ""]
    assert counted == [(2, 2), (2, 2), (1, 1), (1, 1), (2, 2), (1, 1), (2, 2), (0, 0)]


def test_no_more_jobs_are_read_ahead_than_there_are_canvases(monkeypatch):
    monkeypatch.setattr(executor, "ThreadPoolExecutor", AtOnce)
    jobs = [Countdown(name, 1) for name in "abcdefgh"]
    for number, _ in enumerate(run_jobs(jobs, Steps(2), threads=8)):
        assert sum(job.is_read for job in jobs) <= number + 4, "two on the canvases, and two that are read ahead"


def test_what_a_job_cannot_read_ends_the_call():
    class Damaged(Countdown):
        def read(self):
            raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        list(run_jobs([Countdown("a", 1), Damaged("b", 1)], Steps(1), 2))
