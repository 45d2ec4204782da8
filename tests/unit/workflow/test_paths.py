"""Where the files of a run are, and which segmentation is the final one."""

import pytest

from ffn.errors import ConfigError
from ffn.workflow.paths import RunPaths
from ffn.workflow.run import load_run

RUN = {"volumes": {"cube": {"synthetic": {}}}}


def test_existing_files_are_found_whatever_their_wildcards(tmp_path):
    paths = RunPaths(tmp_path)
    assert not paths.is_run() and paths.existing("segment") == []
    for order in ("", "-reversed"):
        store = tmp_path / f"segmentation/cube/subvolumes{order}/z0-y0-x0.zarr"
        store.mkdir(parents=True)
        (store / "zarr.json").touch()
    assert paths.is_run()
    assert [path.parent.name for path in paths.existing("segment")] == ["subvolumes", "subvolumes-reversed"]
    assert [path.parent.name for path in paths.existing("segment", order="")] == ["subvolumes"]


def test_a_store_is_there_once_it_is_finished(tmp_path):
    paths = RunPaths(tmp_path)
    assert paths.file("ingest", volume="cube") == f"{paths.of('ingest', volume='cube')}/zarr.json"
    assert paths.file("evaluate", volume="cube") == paths.of("evaluate", volume="cube")
    store = tmp_path / "volumes/cube/raw.zarr"
    store.mkdir(parents=True)
    assert paths.existing("ingest") == []
    (store / "zarr.json").touch()
    assert paths.existing("ingest") == [store]


@pytest.mark.parametrize(
    ("sections", "stem"),
    [
        ({}, "segmentation"),
        ({"consensus": {"enabled": True}}, "consensus"),
        ({"consensus": {"enabled": True}, "agglomerate": {"enabled": True}}, "agglomerated"),
        ({"fill": {"max_distance_nm": 2}}, "filled"),
    ],
)
def test_the_last_enabled_stage_makes_the_final_segmentation(sections, stem):
    run = load_run({**RUN, **sections})
    assert RunPaths("results/a").final(run, volume="cube") == f"results/a/segmentation/cube/{stem}.zarr"


def test_a_configuration_of_another_version_is_one_line(tmp_path):
    assert RunPaths(tmp_path).read_config() is None
    (tmp_path / "config.yaml").write_text("volumes: {cube: {synthetic: {}}}\nrng_seed: one\n")
    with pytest.raises(ConfigError, match="config.yaml: .*rng_seed"):
        RunPaths(tmp_path).read_config()


def test_options_of_an_earlier_version_are_ignored(tmp_path):
    text = "volumes: {cube: {synthetic: {}, gone: 1}}\ntrain: {max_steps: 7, gone: 2}\ngone: 3\n"
    (tmp_path / "config.yaml").write_text(text)
    assert RunPaths(tmp_path).read_config().train.max_steps == 7
