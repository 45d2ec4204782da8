"""Jobs share a few canvases: each is read before it begins, and a canvas that becomes free is taken again."""

from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.inference import lanes as inference_lanes
from ffn.inference.lanes import MOST_CANVASES, fitting_canvases, run_jobs


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
    monkeypatch.setattr(inference_lanes, "ThreadPoolExecutor", AtOnce)
    lanes, jobs = Steps(2), [Countdown(name, num_fovs) for name, num_fovs in zip("abcde", (2, 5, 0, 3, 1), strict=True)]
    counted, done = [], []
    for job in run_jobs(jobs, lanes, threads, lambda num_fovs, active: counted.append((num_fovs, len(active)))):
        assert job.left == 0
        done.append(job.name)
    assert done == list("acbde") and [job.lane for job in jobs] == [0, 1, 0, 0, 1]
    assert lanes.busy == ["ab", "ab", "b", "b", "bd", "d", "de", ""]
    assert counted == [(2, 2), (2, 2), (1, 1), (1, 1), (2, 2), (1, 1), (2, 2), (0, 0)]


def test_jobs_are_read_ahead_up_to_the_canvases_and_errors_end_the_call(monkeypatch):
    monkeypatch.setattr(inference_lanes, "ThreadPoolExecutor", AtOnce)
    jobs = [Countdown(name, 1) for name in "abcdefgh"]
    for number, _ in enumerate(run_jobs(jobs, Steps(2), threads=8)):
        assert sum(job.is_read for job in jobs) <= number + 4, "two on the canvases, and two that are read ahead"

    class Damaged(Countdown):
        def read(self):
            raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        list(run_jobs([Countdown("a", 1), Damaged("b", 1)], Steps(1), 2))


MODEL = ModelConfig(features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))


@pytest.mark.parametrize(
    ("on_gpu", "on_host", "expected"),
    [(10**12, 1000, 1), (10**12, 3000, 4), (10**12, 64_000, MOST_CANVASES), (10**9, 64_000, 14), (10**6, 64_000, 1)],
)
def test_auto_takes_what_the_memories_of_gpu_and_machine_hold(monkeypatch, on_gpu, on_host, expected):
    """128³ voxels: 8 that are searched for seeds take 0.4 GB, a canvas 31 MB on the host and 59 MB on the GPU."""
    monkeypatch.setattr(inference_lanes, "memory_mb", lambda: on_host)
    gpu = SimpleNamespace(memory_stats=lambda: {"bytes_limit": on_gpu + 500, "bytes_in_use": 500})
    assert fitting_canvases(gpu, MODEL, (128, 128, 128), np.dtype(np.uint8)) == expected
