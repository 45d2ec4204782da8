"""What the folder of a run contains."""

import pytest
import yaml

from ffn.errors import ExportError
from ffn.report.run_folder import configured_pipeline, find_export, read_costs, read_volumes
from ffn.workflow.paths import RunPaths

from .conftest import BENCHMARK, CONFIG, SUBVOLUMES


def costs_of(run):
    return read_costs(run, configured_pipeline(RunPaths(run)))


def test_costs_add_up_by_stage_in_the_order_of_the_pipeline(run):
    train, segment = costs_of(run)
    assert (train.stage, train.num_jobs, train.seconds, train.peak_mib) == ("train", 1, 95.5, 2048.2)
    assert (segment.stage, segment.num_jobs, segment.seconds) == ("segment", 2, 50)
    assert (segment.longest_seconds, segment.peak_mib, segment.cpu_seconds) == (30, 512, 36)


@pytest.mark.parametrize(
    ("changed", "counted"),
    [
        ({}, {"segment": 2}),
        ({"subvolumes": {"size_zyx": [160, 128, 128]}}, {"segment": 1}),
        ({"segment": {"canvases": 2}}, {"segment_list": 1}),
        ({"consensus": {"enabled": True}}, {"segment": 2, "segment-reversed": 1}),
        ({"volumes": {"other": {"synthetic": {}}}}, {}),
    ],
)
def test_costs_are_those_of_the_present_subvolumes(copied, changed, counted):
    """A run that was tiled otherwise before, in lists or with a consensus has the files of that, too."""
    (copied / "config.yaml").write_text(yaml.safe_dump(yaml.safe_load(CONFIG) | changed))
    for name in (f"segment-reversed.cube.{SUBVOLUMES[0]}", "segment_list.cube.1-of-7"):  # cut otherwise, the same work
        (copied / f"benchmarks/{name}.tsv").write_text(BENCHMARK.format(20, 512))
    assert {cost.stage: cost.num_jobs for cost in costs_of(copied)} == {
        "train": 1,
        **counted,
    }


def test_volumes_are_found_by_segmentation_or_scores(run):
    (files,) = read_volumes(run)
    assert files.name == "cube" and files.scores is not None
    assert files.baseline.endswith("cube-baseline.zarr")


def make_exports(run, *names):
    for name in names:
        (run / "precomputed" / name).mkdir(parents=True)
        (run / "precomputed" / name / "neuroglancer.json").write_text("{}")


def test_an_export_is_found_by_its_folder_or_its_run(tmp_path):
    make_exports(tmp_path, "fib25")
    export_dir = tmp_path / "precomputed/fib25"
    assert find_export(export_dir, None) == find_export(tmp_path, None) == find_export(tmp_path, "fib25") == export_dir


def test_several_or_no_exports_are_one_line(tmp_path):
    with pytest.raises(ExportError, match="is not an export and has none in precomputed/. Run ffn export"):
        find_export(tmp_path / "nothing", None)
    make_exports(tmp_path, "b", "a")
    with pytest.raises(ExportError, match=r"has several exports \(a, b\), expected one. Choose it with --volume"):
        find_export(tmp_path, None)
    with pytest.raises(ExportError, match="--volume: 'c' is not in .*, expected one of: a, b"):
        find_export(tmp_path, "c")
