import io
import logging

import pytest

from ffn.workflow.snakemake_patches import MAX_LINES, LiveJobs

LINE = "segment:  10% 7/73 [00:05<00:45, 1.4seed/s, 40 FOVs/s]"


class Jobs:
    """Jobs of Snakemake, and what is shown of them."""

    def __init__(self, log):
        self._log, self._file = log, io.StringIO()
        self._handler = LiveJobs(self._file)

    def says(self, event, **fields):
        self._handler.handle(logging.makeLogRecord({"event": event, **fields}))

    def start(self, number, log=None):
        wildcards = {"volume": "fly", "order": ""}
        self.says("job_info", jobid=number, rule_name="segment", wildcards=wildcards, log=[str(log or self._log)])

    def shown(self):
        self._handler.show()
        return self._file.getvalue()


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "segment.log"
    path.write_text(f"INFO engine\n{LINE}\nINFO checkpoint\n")
    return path


@pytest.fixture
def jobs(log):
    return Jobs(log)


def test_each_running_job_and_its_last_progress_are_shown_when_they_changed(jobs, log, tmp_path):
    jobs.start(1)
    jobs.start(2, tmp_path / "queued.log")
    before = f"segment fly: {LINE}\nsegment fly: no progress yet\n"
    assert jobs.shown() == jobs.shown() == before
    log.write_text("segment:  20% 14/73 [00:10<00:40, 1.4seed/s]\n")
    after = jobs.shown().removeprefix(before)
    assert after.splitlines()[0] == "segment fly: segment:  20% 14/73 [00:10<00:40, 1.4seed/s]"


def test_many_jobs_are_counted(jobs):
    for number in range(MAX_LINES + 5):
        jobs.start(number)
    assert "… and 5 more jobs" in jobs.shown()


def test_a_plugin_that_shows_the_jobs_is_left_alone():
    logger = logging.Logger("snakemake with another display")
    LiveJobs(io.StringIO()).start(logger)
    assert logger.handlers == []


@pytest.mark.parametrize(("event", "key"), [("job_finished", "job_id"), ("job_error", "jobid")])
def test_a_job_that_ended_is_no_longer_shown(event, key, jobs):
    jobs.start(1)
    jobs.says(event, **{key: 1})
    assert jobs.shown() == ""
