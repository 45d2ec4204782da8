import os

import pytest

from ffn.cli import main
from ffn.report.watch import status


def write(path, text, age=0.0, now=1000.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (now - age, now - age))


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "logs/membrane/fly.log", "membrane: 100% 8/8 [00:02<00:00, 4block/s]\n", age=30)
    write(tmp_path / "benchmarks/membrane.fly.tsv", "s\n2\n", age=30)
    write(tmp_path / "logs/segment/fly/z0-y0-x0.log", "segment:  10% 7/73 [00:05<00:45, 1.4seed/s]\n", age=4)
    write(tmp_path / "logs/segment/fly/z0-y0-x9.log", "segment:   9% 6/73 [00:05<00:45, 1.4seed/s]\n", age=4000)
    return tmp_path


def test_done_jobs_are_counted_and_running_ones_shown(run):
    done, running = status(run, 1000.0)
    assert "membrane 1" in done and "z0-y0-x0" in running and "10% 7/73" in running and "4 s" in running


def test_a_job_that_is_repeated_is_shown(run):
    write(run / "logs/membrane/fly.log", "membrane:  50% 4/8 [00:01<00:01, 4block/s]\n", age=10)
    assert "50% 4/8" in status(run, 1000.0)[1]


def test_jobs_of_studies_end_too(run):
    write(run / "logs/studies/measure-2.log", "measure: 100% 8/8 [00:02<00:00, 4step/s]\n", age=9)
    write(run / "benchmarks/studies/measure-2.tsv", "s\n2\n", age=9)
    lines = status(run, 1000.0)
    assert "studies 1" in lines[0] and len(lines) == 2


def test_a_log_from_a_machine_whose_clock_is_ahead_is_new(run):
    write(run / "logs/segment/fly/z0-y0-x0.log", "segment:  10% 7/73 [00:05<00:45, 1.4seed/s]\n", age=-7)
    assert "(0 s" in status(run, 1000.0)[1]


def test_the_command_looks_once_and_refuses_a_folder_without_logs(run, tmp_path, capsys):
    assert main(["watch", str(run), "--once"]) == 0
    assert "membrane 1" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "logs")]) == 2
