"""The report compares what made each file with the configuration of the run."""

import shutil

import numpy as np
import pytest
import yaml

from ffn.cli import main
from ffn.config import IngestConfig, SegmentConfig
from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, volume_in
from ffn.provenance import provenance
from ffn.report import made_with
from ffn.report.describe import describe
from ffn.report.made_with import read_made_with
from ffn.report.page import render
from ffn.training.config import TrainConfig
from ffn.workflow.paths import RunPaths
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import Place
from ffn.workflow.run import load_run

from .conftest import Page

IMAGE, LABELS = Box.parse("0:40,0:24,0:32"), Box.parse("4:30,0:24,0:32")
CONFIG = {
    "run": "tiny",
    "volumes": {
        "cube": {
            "image": "raw.npy",
            "labels": "labels.npy",
            "labels_offset_zyx": [4, 0, 0],
            "voxel_size_zyx_nm": [30, 8, 8],
            "train_box": "4:20,0:24,0:32",
            "evaluate_box": "20:30,0:24,0:32",
        }
    },
    "model": {"depth": 2, "features": 4, "fov_size_zyx": [5, 7, 9], "deltas_zyx": [1, 2, 2]},
    "subvolumes": {"size_zyx": [24, 24, 32], "overlap_zyx": [8, 8, 10]},
    "train": {"max_steps": 300, "permutable_axes": []},
    "fill": {"max_distance_nm": 3},
}


def changed(**sections):
    return {name: {**value, **sections.pop(name)} if name in sections else value for name, value in CONFIG.items()} | (
        sections
    )


def with_volume(**options):
    return changed(volumes={"cube": {**CONFIG["volumes"]["cube"], **options}})


def configure(run, config):
    """Write the configuration as the workflow does when it starts."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(yaml.safe_dump(load_run(config).as_written()))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder of a run with the files of some stages, made as CONFIG says; they have no content."""
    run = tmp_path_factory.mktemp("results") / "tiny"
    config = load_run(CONFIG)
    places = {"cube": Place(IMAGE, LABELS, (30, 8, 8), config.volumes["cube"])}
    paths, pipeline = RunPaths(run), Pipeline(config, places)

    def write(path, dtype, box, *recorded, **inputs):
        placement = Placement(box, (30, 8, 8), provenance(*recorded, **inputs))
        with create_volume(volume_in(path, MAIN if path.endswith(".zarr") else "segmentation"), dtype, placement):
            pass

    size = {"voxel_size_zyx_nm": (30, 8, 8)}
    ingested = IngestConfig(kind="image", **size), IngestConfig(kind="labels", offset_zyx=LABELS.start, **size)
    write(paths.of("ingest", volume="cube"), np.uint8, IMAGE, "ingest", ingested[0], source="raw.npy")
    write(paths.of("ingest", "labels", volume="cube"), np.uint64, LABELS, "ingest", ingested[1], source="labels.npy")
    write(paths.of("partition", volume="cube"), np.uint8, places["cube"].train_box, "partition", config.partition)
    for stem, box in pipeline.subvolumes["cube"].items():
        path = paths.of("segment", volume="cube", order="", subvolume=stem)
        write(path, np.uint64, box, "segment", config.segment, engine="tensorflow float32")
    filled, merged = paths.of("fill", volume="cube"), pipeline.paths.merged(config, volume="cube")
    write(filled, np.uint64, IMAGE, "fill", config.fill, segmentation=merged)
    trained = config.train.model_copy(update={"precision": "float32"})
    model = config.model.model_copy(update={"image_mean": 120.5, "image_stddev": 30.0})
    description = {"model": model.model_dump(mode="json"), "provenance": provenance("train", trained, rng_seed=1)}
    (run / "model").mkdir()
    (run / "model/model.yaml").write_text(yaml.safe_dump(description))
    configure(run, CONFIG)
    return run


@pytest.fixture
def run(tiny, tmp_path):
    """A copy of the tiny run, to change."""
    shutil.copytree(tiny, tmp_path / "results/tiny")
    return tmp_path / "results/tiny"


def statements(run, config=None):
    """Return what differs, by stage and first file, after a change of the configuration."""
    if config:
        configure(run, config)
    return {(one.stage, one.files[0]): one.statements for one in read_made_with(run) if not one.is_as_configured}


def test_files_made_as_configured_differ_in_nothing(run):
    made = read_made_with(run)
    assert [one.stage for one in made] == ["ingest", "ingest", "partition", "train", "segment", "fill"]
    assert all(one.is_as_configured for one in made)
    segmented = made[4]
    assert segmented.named_files == "2 files: segmentation/cube/subvolumes/z000000-y000000-x000000.h5, …"
    assert segmented.made_by.endswith(", tensorflow float32")


def test_files_that_lists_of_jobs_made_are_as_configured(run):
    """Snakemake watches the records of such jobs, not their files."""
    assert statements(run, changed(workflow={"max_jobs_per_stage": 1})) == {}


@pytest.mark.parametrize(
    ("config", "file", "statement"),
    [
        (
            changed(train={"max_steps": 400, "permutable_axes": []}),
            "model/model.yaml",
            "train.max_steps: made with 300; config.yaml says 400",
        ),
        (
            changed(model={"depth": 3}),
            "model/model.yaml",
            "model.depth: made with 2; config.yaml says 3",
        ),
        (changed(rng_seed=2), "model/model.yaml", "rng_seed: made with 1; config.yaml says 2"),
        (
            changed(train={"permutable_axes": ["y"]}),
            "model/model.yaml",
            'train.permutable_axes: made with []; config.yaml says ["y"]',
        ),
        (
            changed(fill={"max_distance_nm": 3.5}),
            "segmentation/cube/filled.zarr",
            "fill.max_distance_nm: made with 3.0; config.yaml says 3.5",
        ),
        (
            changed(consensus={"enabled": True}),
            "segmentation/cube/filled.zarr",
            "segmentation: made with results/tiny/segmentation/cube/segmentation.zarr; "
            "config.yaml says results/tiny/segmentation/cube/consensus.zarr",
        ),
        (
            with_volume(train_box="4:18,0:24,0:32"),
            "partitions/cube.zarr",
            "volumes.cube.train_box: made with 4:20,0:24,0:32; config.yaml says 4:18,0:24,0:32",
        ),
        (
            with_volume(image="other.npy"),
            "volumes/cube/raw.zarr",
            "volumes.cube.image: made with raw.npy; config.yaml says other.npy",
        ),
        (
            with_volume(labels_offset_zyx=[5, 0, 0]),
            "volumes/cube/labels.zarr",
            "volumes.cube.labels_offset_zyx: made with [4, 0, 0]; config.yaml says [5, 0, 0]",
        ),
        (
            with_volume(mip=1),
            "volumes/cube/raw.zarr",
            "volumes.cube.mip: made with null; config.yaml says 1",
        ),
        (
            with_volume(ignore_labels=[7]),
            "volumes/cube/labels.zarr",
            f"volumes.cube.ignore_labels: made with {list(IngestConfig().ignore_labels)}; config.yaml says [7]",
        ),
    ],
)
def test_both_values_of_a_changed_option_are_told(run, config, file, statement):
    found = {files: lines for (_, files), lines in statements(run, config).items()}
    assert found == {file: [statement]}


def test_with_initial_weights_the_given_options_of_the_network_are_compared(run):
    """The others come with the weights."""
    given = {**CONFIG["model"], "depth": 3}
    del given["features"]
    found = statements(run, {**CONFIG, "init": "published", "model": given})["train", "model/model.yaml"]
    assert [line for line in found if line.startswith("model.")] == ["model.depth: made with 2; config.yaml says 3"]


def test_another_tiling_tells_boxes_and_files_that_nobody_needs(run):
    found = statements(run, changed(subvolumes={"size_zyx": [28, 24, 32]}))
    first, second = (f"segmentation/cube/subvolumes/z0000{z}-y000000-x000000.h5" for z in ("00", "16"))
    assert found == {
        ("segment", first): ["box: made with 0:24,0:24,0:32; config.yaml says 0:28,0:24,0:32"],
        ("segment", second): ["config.yaml makes no such file any more"],
    }


def test_files_of_one_stage_that_differ_among_themselves_are_told_apart(run):
    """Half of the subvolumes were made before the change, half of them afterwards."""
    path = run / "segmentation/cube/subvolumes/z000016-y000000-x000000.h5"
    config = load_run(changed(segment={"move_threshold": 0.8}))
    box, record = Box.parse("16:40,0:24,0:32"), provenance("segment", config.segment, engine="tensorflow float32")
    with create_volume(f"{path}:segmentation", np.uint64, Placement(box, (30, 8, 8), record)):
        pass
    told = "segment.move_threshold: made with 0.8; config.yaml says 0.9"
    assert statements(run) == {("segment", str(path.relative_to(run))): [told]}
    segmented = [one for one in read_made_with(run) if one.stage == "segment"]
    assert [one.named_files.partition(":")[0] for one in segmented] == ["1 of 2 files"] * 2


def test_options_that_keep_the_result_are_no_difference(run, monkeypatch):
    monkeypatch.setattr(SegmentConfig.model_fields["threads"], "json_schema_extra", {"result": False})
    assert statements(run, changed(segment={"threads": 3})) == {}


def test_workers_shared_out_otherwise_are_no_difference(run):
    default = TrainConfig()
    workers = default.num_workers * default.virtual_workers
    assert statements(run, changed(train={"num_workers": 1, "virtual_workers": workers})) == {}
    found = statements(run, changed(train={"num_workers": 1, "virtual_workers": workers + 1}))
    assert "num_workers × virtual_workers: made with" in found["train", "model/model.yaml"][0]


def test_what_the_configuration_leaves_to_the_stage_is_no_difference(run):
    """The model records the precision that it was trained with, and the measured mean of the image."""
    assert statements(run) == {}
    found = statements(run, changed(train={"precision": "bfloat16"}, model={"image_mean": 128, "image_stddev": 33}))
    assert found["train", "model/model.yaml"] == [
        "train.precision: made with float32; config.yaml says bfloat16",
        "model.image_mean: made with 120.5; config.yaml says 128.0",
        "model.image_stddev: made with 30.0; config.yaml says 33.0",
    ]


def test_a_volume_that_is_gone_from_the_configuration(run):
    other = {"synthetic": {"shape_zyx": [40, 40, 40]}, "train_box": "0:30,0:40,0:40", "evaluate_box": "none"}
    found = statements(run, changed() | {"volumes": {"other": other}})
    assert found["ingest", "volumes/cube/raw.zarr"] == ["config.yaml makes no such file any more"]
    assert ("train", "model/model.yaml") not in found


def test_a_synthetic_volume_in_place_of_a_real_one(run):
    synthetic = {
        "synthetic": {"shape_zyx": IMAGE.shape},
        "train_box": "4:20,0:24,0:32",
        "evaluate_box": "20:30,0:24,0:32",
    }
    found = statements(run, changed() | {"volumes": {"cube": synthetic}})
    assert found["ingest", "volumes/cube/raw.zarr"] == ["volumes.cube.image: made with raw.npy; config.yaml says null"]


def test_without_the_volumes_only_options_are_compared(run):
    shutil.rmtree(run / "volumes/cube/labels.zarr")
    assert statements(run, with_volume(train_box="4:18,0:24,0:32")) == {}
    assert len(statements(run, changed(fill={"max_distance_nm": 4}))) == 1
    found = statements(run, changed() | {"volumes": {"other": CONFIG["volumes"]["cube"]}})
    assert found["ingest", "volumes/cube/raw.zarr"] == ["config.yaml makes no such file any more"]


def test_without_a_configuration_nothing_differs(run):
    (run / "config.yaml").unlink()
    assert statements(run) == {} and len(read_made_with(run)) == 6


def test_of_many_files_some_are_looked_at_and_the_page_says_so(run, monkeypatch):
    """A run may have a million subvolumes, and each takes time and memory."""
    path, folder = RunPaths(run).of("segment", volume="cube", order=""), run / "segmentation/cube/subvolumes"
    for z in set(range(30)) - {0, 16}:  # those that the configuration makes
        shutil.copy(folder / "z000000-y000000-x000000.h5", path.format(subvolume=f"z{z:06}-y000000-x000000"))
    read, names = made_with.read_provenance, []
    monkeypatch.setattr(made_with, "read_provenance", lambda file: names.append(file) or read(file))
    monkeypatch.setattr("ffn.report.run_folder.MOST_FILES", 4)
    segmented = [one for one in read_made_with(run) if one.stage == "segment"]
    assert len([name for name in names if str(folder) in str(name)]) == sum(len(one.files) for one in segmented) == 4
    assert {one.num_named for one in segmented} == {30}
    assert segmented[0].named_files.startswith("2 of 4 files looked at of 30: segmentation/cube/subvolumes/z000000-")
    text = Page(render(run)).text
    assert "2 of 9 files looked at were not made as config.yaml says" in text and "evenly spread" in text
    assert describe(str(run))["stages"]["segment"] == 30


def test_masks_in_a_volume_that_training_reads_train_again(run):
    config = with_volume(masks=[{"box": "0:4,0:5,0:6", "invert": True}])
    (told,) = statements(run, config)["train", "model/model.yaml"]
    assert "cube=#box=0:4,0:5,0:6#invert" in told


def test_each_folder_has_a_sample_and_a_consensus_that_is_off_needs_no_second_pass(run, monkeypatch):
    monkeypatch.setattr("ffn.report.run_folder.MOST_FILES", 1)
    first, second = (run / f"segmentation/cube/subvolumes{order}" for order in ("", "-reversed"))
    shutil.copytree(first, second)
    names = {str(folder.relative_to(run)) + "/z000000-y000000-x000000.h5" for folder in (first, second)}
    segmented = [one for one in read_made_with(run) if one.stage == "segment"]
    assert {name for one in segmented for name in one.files} == names
    assert [one.is_wanted for one in segmented] == [True, False]


def test_the_page_tells_what_was_made_otherwise(run):
    text = Page(render(run)).text
    assert "All 7 files with provenance were made as config.yaml says" in text and ": made with" not in text
    configure(run, changed(fill={"max_distance_nm": 3.5}))
    text = Page(render(run)).text
    assert text.count("fill.max_distance_nm: made with 3.0; config.yaml says 3.5") == 1
    assert "1 of 7 files was not made as config.yaml says" in text


def test_the_summary_of_a_run_tells_it_too(run, capsys):
    configure(run, changed(fill={"max_distance_nm": 3.5}))
    assert main(["info", str(run)]) == 0
    told = "segmentation/cube/filled.zarr  fill.max_distance_nm: made with 3.0; config.yaml says 3.5"
    assert told in capsys.readouterr().out
