import io
import logging

import pytest

from ffn.workflow.live import MAX_LINES, LiveJobs


def snakemake_says(handler, event, **fields):
    handler.handle(logging.makeLogRecord({"event": event, **fields}))


def start(handler, number, log):
    snakemake_says(
        handler, "job_info", jobid=number, rule_name="segment", wildcards={"volume": "fly", "order": ""}, log=[str(log)]
    )


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "segment.log"
    path.write_text("INFO engine\nsegment:  10% 7/73 [00:05<00:45, 1.4seed/s, 40 FOVs/s]\nINFO checkpoint\n")
    return path


def test_each_running_job_and_its_last_progress_are_shown(log, tmp_path):
    file = io.StringIO()
    handler = LiveJobs(file)
    start(handler, 1, log)
    start(handler, 2, tmp_path / "queued.log")
    handler.show()
    assert file.getvalue() == (
        "segment fly: segment:  10% 7/73 [00:05<00:45, 1.4seed/s, 40 FOVs/s]\nsegment fly: no progress yet\n"
    )


def test_many_jobs_are_counted(log):
    file = io.StringIO()
    handler = LiveJobs(file)
    for number in range(MAX_LINES + 5):
        start(handler, number, log)
    handler.show()
    assert "… and 5 more jobs" in file.getvalue()


def test_a_plugin_that_shows_the_jobs_is_left_alone():
    logger = logging.Logger("snakemake with another display")
    LiveJobs(io.StringIO()).start(logger)
    assert logger.handlers == []


@pytest.mark.parametrize("end", [("job_finished", "job_id"), ("job_error", "jobid")])
def test_a_job_that_ended_is_no_longer_shown(end, log):
    event, key = end
    file = io.StringIO()
    handler = LiveJobs(file)
    start(handler, 1, log)
    snakemake_says(handler, event, **{key: 1})
    handler.show()
    assert file.getvalue() == ""


def test_a_line_is_shown_only_when_it_changed(log):
    file = io.StringIO()
    handler = LiveJobs(file)
    start(handler, 1, log)
    handler.show()
    handler.show()
    assert file.getvalue().count("\n") == 1
    log.write_text("segment:  20% 14/73 [00:10<00:40, 1.4seed/s]\n")
    handler.show()
    assert file.getvalue().splitlines()[1:] == ["segment fly: segment:  20% 14/73 [00:10<00:40, 1.4seed/s]"]
