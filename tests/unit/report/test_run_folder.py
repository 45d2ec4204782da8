"""What the folder of a run contains, and what `ffn watch` prints of it."""

import os

import pytest

from ffn.cli import main
from ffn.errors import ExportError
from ffn.report.run_folder import find_export, read_costs, read_volumes
from ffn.report.watch import status

from .conftest import make_exports


def test_costs_and_volumes_are_found(run):
    train, segment = read_costs(run)
    assert (train.stage, train.num_jobs, train.seconds, train.peak_mib) == ("train", 1, 95.5, 2048.2)
    assert (segment.stage, segment.num_jobs, segment.seconds) == ("segment", 2, 50)
    assert (segment.longest_seconds, segment.peak_mib, segment.cpu_seconds) == (30, 512, 36)
    (files,) = read_volumes(run)
    assert files.name == "cube" and files.scores is not None
    assert files.baseline.endswith("cube-baseline.zarr")


def test_an_export_is_found_by_its_folder_or_its_run(tmp_path):
    make_exports(tmp_path, "fib25")
    export_dir = tmp_path / "precomputed/fib25"
    assert find_export(export_dir, None) == find_export(tmp_path, None) == find_export(tmp_path, "fib25") == export_dir


def test_several_or_no_exports_are_refused(tmp_path):
    make_exports(tmp_path, "b", "a")
    for folder, volume, named in (
        (tmp_path / "nothing", None, "nothing: is not an export"),
        (tmp_path, None, "a, b"),
        (tmp_path, "c", "'c'"),
    ):
        with pytest.raises(ExportError, match=named):
            find_export(folder, volume)


def write(path, text, age=0.0, now=1000.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (now - age, now - age))


@pytest.fixture
def watched(tmp_path):
    write(tmp_path / "logs/membrane/fly.log", "membrane: 100% 8/8 [00:02<00:00, 4block/s]\n", age=30)
    write(tmp_path / "benchmarks/membrane.fly.tsv", "s\n2\n", age=30)
    write(tmp_path / "logs/segment/fly/z0-y0-x0.log", "segment:  10% 7/73 [00:05<00:45, 1.4seed/s]\n", age=4)
    write(tmp_path / "logs/segment/fly/z0-y0-x9.log", "segment:   9% 6/73 [00:05<00:45, 1.4seed/s]\n", age=4000)
    return tmp_path


def test_jobs_are_counted_and_running_and_repeated_ones_shown(watched):
    done, running = status(watched, 1000.0)
    assert "membrane 1" in done and "z0-y0-x0" in running and "10% 7/73" in running and "4 s" in running
    write(watched / "logs/membrane/fly.log", "membrane:  50% 4/8 [00:01<00:01, 4block/s]\n", age=10)
    assert "50% 4/8" in status(watched, 1000.0)[1]


def test_jobs_of_studies_end_and_clocks_may_be_ahead(watched):
    write(watched / "logs/studies/measure-2.log", "measure: 100% 8/8 [00:02<00:00, 4step/s]\n", age=9)
    write(watched / "benchmarks/studies/measure-2.tsv", "s\n2\n", age=9)
    lines = status(watched, 1000.0)
    assert "studies 1" in lines[0] and len(lines) == 2
    write(watched / "logs/segment/fly/z0-y0-x0.log", "segment:  10% 7/73 [00:05<00:45, 1.4seed/s]\n", age=-7)
    assert "(0 s" in status(watched, 1000.0)[1]


def test_the_command_looks_once_and_refuses_a_folder_without_logs(watched, tmp_path, capsys):
    assert main(["watch", str(watched), "--once"]) == 0
    assert "membrane 1" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "logs")]) == 2
