"""What the folder of a run contains."""

import pytest

from ffn.errors import ExportError
from ffn.report.run_folder import find_export, read_costs, read_volumes

from .conftest import make_exports


def test_costs_and_volumes_are_found(run):
    train, segment = read_costs(run)
    assert (train.stage, train.num_jobs, train.seconds, train.peak_mib) == ("train", 1, 95.5, 2048.2)
    assert segment == ("segment", 2, 50, 30, 512, 36)
    (files,) = read_volumes(run)
    assert files.name == "cube" and files.scores and files.baseline.endswith("cube-baseline.zarr")


@pytest.mark.parametrize("keys", ["synthetic: {}, evaluate_box: none", "image: raw.h5"])
def test_scores_truth_and_volumes_of_a_former_configuration_are_not_those_of_the_run(copied, keys):
    for name, found in (("cube", [("cube", None, "synthetic" in keys)]), ("new", [])):
        (copied / "config.yaml").write_text(f"{{init: m, train: {{max_steps: 0}}, volumes: {{{name}: {{{keys}}}}}}}")
        assert [(each.name, each.scores, bool(each.truth)) for each in read_volumes(copied)] == found


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
    assert find_export(tmp_path, None, ["a"]).name == "a"
