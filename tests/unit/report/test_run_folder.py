"""What the folder of a run contains."""

import pytest

from ffn.errors import ExportError
from ffn.report.run_folder import find_export, read_costs, read_volumes

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
        (tmp_path, None, "^(?!.*None).*a, b"),
        (tmp_path, "c", "'c'"),
    ):
        with pytest.raises(ExportError, match=named):
            find_export(folder, volume)
