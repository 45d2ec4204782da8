"""Logs of blocks: killed jobs, torn lines, jobs that take over, results in order."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io import block_log
from ffn.io.block_log import BlockLogs, JobLog

KEY = {"stage": "test", "revision": 1}
BLOCKS = list(Box.from_shape((1, 1, 12)).blocks((1, 1, 1)))


def logs_in(folder, key=KEY):
    return BlockLogs(folder, key, BLOCKS)


class Counted:
    """Work that notes its blocks, and is killed after a number of them."""

    def __init__(self, calls=99):
        self.done, self._calls = [], calls

    def __call__(self, block):
        if len(self.done) == self._calls:
            raise KeyboardInterrupt
        self.done.append(block.start[2])
        return {"x": block.start[2], "square": np.array([block.start[2] ** 2])}


def results(folder):
    logs = logs_in(folder)
    logs.require_finished()
    return [(each["x"], each["square"].tolist()) for each in logs]


EXPECTED = [(x, [x**2]) for x in range(12)]


@pytest.mark.parametrize("torn", [b'{"block": 3, "res', b'{"block": 3}', b"\0\0\n"])
def test_a_killed_job_goes_on_after_its_last_whole_line(tmp_path, torn):
    with pytest.raises(KeyboardInterrupt):
        logs_in(tmp_path).run(Counted(3))
    (path,) = tmp_path.glob("1-of-1-*.jsonl")
    path.write_bytes(path.read_bytes() + torn)
    logs = logs_in(tmp_path)
    with pytest.raises(VolumeError, match="9 of 12"):
        logs.require_finished()
    assert logs[1]["x"] == 1
    work = Counted()
    logs.run(work)
    assert work.done == list(range(3, 12))
    assert results(tmp_path) == EXPECTED


def test_with_another_key_a_job_begins_anew_and_removes_the_former_logs(tmp_path):
    other = {**KEY, "revision": 2}
    for number in (1, 2):
        logs_in(tmp_path, other).run(Counted(), number, 2)
    work = Counted()
    logs_in(tmp_path).run(work, 1, 2)
    assert work.done == [0, 1, 2, 3, 4, 5], "those of the other key did not begin"
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(VolumeError, match="12 of 12"):
        logs_in(tmp_path, other).require_finished()


def test_a_job_does_the_rest_of_a_killed_one_but_the_block_that_was_claimed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        logs_in(tmp_path).run(Counted(2), 1, 2)
    helper = Counted()
    logs_in(tmp_path).run(helper, 2, 2)
    assert helper.done == [*range(6, 12), 5, 4, 3], "its own first; block 2 was in flight"
    again = Counted()
    logs_in(tmp_path).run(again, 1, 2)
    assert again.done == [2]
    assert results(tmp_path) == EXPECTED


def test_a_job_that_has_all_blocks_does_claimed_ones(tmp_path):
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            logs_in(tmp_path).run(Counted(2), number, 2)
    last = Counted()
    logs_in(tmp_path).run(last)
    assert last.done == [2, 3, 4, 5, 8, 9, 10, 11]
    assert results(tmp_path) == EXPECTED


def test_jobs_at_the_same_time_end_together_and_share_the_blocks_of_a_slow_one(tmp_path, monkeypatch):
    monkeypatch.setattr(block_log, "SECONDS_PER_LOG", 0)
    is_slow, helped = threading.Event(), threading.Event()
    done = {1: [], 2: []}

    def work_of(job):
        def work(block):
            if job == 1:
                is_slow.set()
                assert helped.wait(10)
            else:
                assert is_slow.wait(10)
            done[job].append(block.start[2])
            return {"x": block.start[2], "square": np.array([block.start[2] ** 2])}

        return work

    def run(job):
        logs_in(tmp_path).run(work_of(job), job, 2)
        helped.set()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, (1, 2)))
    assert done[1] == [0] and sorted(done[2]) == list(range(1, 12))
    assert results(tmp_path) == EXPECTED


def test_two_jobs_may_do_the_same_block(tmp_path):
    """As after a claim that the other has not seen yet."""
    first, second = (JobLog(logs_in(tmp_path), number, 2) for number in (1, 2))
    for job in (first, second):
        job._take(3)
        job.finish(BLOCKS[3], {"x": 3, "square": np.array([9])})
        job.close()
    logs_in(tmp_path).run(Counted())
    assert results(tmp_path) == EXPECTED


def test_workers_finish_their_blocks_in_any_order(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        logs_in(tmp_path).run(Counted(), pool=(pool, 3))
    assert results(tmp_path) == EXPECTED


def test_blocks_are_done_again_if_their_files_are_gone_or_their_claim_is_void(tmp_path):
    logs_in(tmp_path).run(Counted())
    job = JobLog(logs_in(tmp_path), 1, 1, lambda block: block.start[2] != 7)
    assert [block.start[2] for block in job] == [7]
    job.close()
    # As after a kill, with another number of jobs.
    with pytest.raises(KeyboardInterrupt):
        logs_in(tmp_path / "claims").run(Counted(0), 3, 4)
    for number in (1, 2):
        logs_in(tmp_path / "claims").run(Counted(), number, 2)
    assert results(tmp_path / "claims") == EXPECTED
