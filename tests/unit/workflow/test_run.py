"""The configuration of a run: relations between values, derived values, sources that are there."""

import datetime
import re

import pytest
import yaml

from ffn.config import _checked_path
from ffn.errors import ConfigError
from ffn.training.config import TrainConfig
from ffn.workflow.run import MAX_NAME, RunConfig, load_run

from .runs import GOOD, PHANTOM, SELECTING, SMALL, VALIDATED, changed, require_one_line

REFUSED = [
    # one of each kind that pydantic refuses, so that its complaint becomes one line
    ({"volume": {}}, "volume"),
    ({"train": {"step": 5}}, "train.step"),
    ({"study": 5}, "study: .*5"),
    ({"train": {"max_steps": "many"}}, "train.max_steps: .*'many'"),
    ({"segment": {"canvases": "x"}}, "segment.canvases: .*'x'"),
    ({"volumes": {}}, "volumes"),
    ({"run": "a/b"}, "run: .*'a/b'"),
    ({"init": "a\nb"}, r"init: .*a\\nb"),
    ({"fill": {"sigma": 8.2}}, "fill.sigma: .*sigma_nm: 8.2"),
    ({"fill": {"min_segment_affinity": 0.7}}, "fill.min_segment_affinity: (?!.* min_affinity)"),
    ({"rum": datetime.date(2026, 11, 27)}, "rum: .*run: .2026-11-27"),
    ({"image": "raw.h5"}, "image: .*volumes: {NAME"),
    # relations between options
    ({"model": {"fov_size_zyx": [9, 10, 13]}}, "model: fov_size_zyx: 10"),
    ({"model": {"deltas_zyx": [5, 3, 3]}}, "model: deltas_zyx: 5"),
    ({"model": {"deltas_zyx": [0, 0, 0]}}, "model: deltas_zyx: .*0, 0, 0"),
    ({"coordinates": {"margin_zyx": [2, 8, 9]}}, "coordinates.margin_zyx: 2"),
    (
        {"coordinates": {"margin_zyx": [11, 17, 18]}, "train": {"fov_policy": "max_pred", "fov_moves": 3}},
        "coordinates.margin_zyx: 11 .*12",
    ),
    (
        {"coordinates": {"margin_zyx": [6, 8, 9]}, "train": {"misaligned_slice_rate": 0.1}},
        "coordinates.margin_zyx: 8 .*12",
    ),
    ({"subvolumes": {"overlap_zyx": [8, 16, 16]}}, "subvolumes.overlap_zyx: 8"),
    ({"subvolumes": {"size_zyx": [16, 40, 40]}}, "subvolumes.overlap_zyx: 16"),
    ({"train": {"max_steps": 0}}, "train.max_steps: 0"),
    ({"train": {"permutable_axes": ["z", "x"]}}, "train.permutable_axes: FOVs .*z .*x"),
    ({"segment": {"init_activation": 0.8}}, "segment: init_activation: 0.8"),
    ({"segment": {"engine": "openvino", "precision": "float16"}}, "segment: precision: .*openvino"),
    ({"partition": {"thresholds": [0.5, 0.2]}}, "partition: thresholds"),
    ({"train": {"use_best": True}}, "train.use_best: true"),
    ({"train": {"use_best": True, "validation_steps": 0}, "volumes": {"a": VALIDATED}}, "train.use_best: true"),
    # volumes
    *[({"volumes": {name: PHANTOM}}, "volumes") for name in ("a b", "-a", "ü", "a{b}", "")],
    ({"volumes": {"phantom": {}}}, "volumes.phantom"),
    ({"volumes": {"phantom": {**PHANTOM, "image": "x.h5"}}}, "volumes.phantom"),
    ({"volumes": {"phantom": {**PHANTOM, "masks": [{"path": ""}]}}}, "volumes.phantom.masks.0.path: ''"),
    ({"volumes": {"phantom": {**PHANTOM, "normalize": "mean"}}}, "volumes.phantom.normalize: .*mean"),
    ({"volumes": {"a": {"image": "a.h5", "voxel_size_zyx_nm": [30, 8]}}}, r"volumes.a.voxel_size_zyx_nm: .*30, 8\]"),
    ({"volumes": {"phantom": {**PHANTOM, "train_box": "0:9"}}}, "volumes.phantom.train_box: .*'0:9'"),
    ({"volumes": {"phantom": {**PHANTOM, "segment_box": "5:5,0:4,0:4"}}}, "volumes.phantom.segment_box: .*5:5"),
    ({"volumes": {"a": PHANTOM, "b": {"image": "b.h5:raw", "validate_box": "all"}}}, "volumes.b: validate_box: all"),
    ({"volumes": {"a": {**PHANTOM, "mip": 0, "ignore_labels": [7]}}}, "volumes.a: .*'mip' and 'ignore_labels'"),
    ({"volumes": {"b": {**PHANTOM, "normalize": "match"}}}, "volumes.phantom.normalize: .*training"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED)
def test_what_is_wrong_is_named_in_one_line(change, named):
    require_one_line(change, f"^{named}")


def test_empty_sections_and_volumes_without_training_are_valid():
    matched = {"a": {**PHANTOM, "normalize": "match"}}
    validated = {**VALIDATED, "train_box": "none"}
    for unread, train in (({"train_box": "none"}, {}), (validated, {"validation_steps": 0})):
        volumes = {**matched, "b": {**PHANTOM, **unread}}
        assert load_run({**GOOD, "volumes": volumes, "train": {**GOOD["train"], **train}}).volumes["b"]
    given = {**SMALL, "image_mean": 120, "image_stddev": 30}
    assert load_run({**GOOD, "volumes": {**matched, "b": PHANTOM}, "model": given})
    sections = [name for name in RunConfig.model_fields if name not in ("run", "rng_seed", "volumes")]
    assert load_run({**dict.fromkeys(sections), **GOOD}) == load_run(GOOD)
    for required in ("volumes", "run"):
        with pytest.raises(ConfigError, match=f"^{required}: "):
            load_run({**GOOD, required: None})


def test_lom_and_margin_follow_the_model():
    run = load_run(GOOD)
    assert run.partition.lom_radius_zyx == run.coordinates.margin_zyx == (6, 8, 9)
    given = load_run(changed(partition={"lom_radius_zyx": [3, 3, 3]}))
    assert given.partition.lom_radius_zyx == (3, 3, 3)
    far = load_run(changed(train={"fov_policy": "max_pred", "fov_moves": 3}))
    assert far.coordinates.margin_zyx == (12, 17, 18) and far.partition.lom_radius_zyx == (6, 8, 9)
    shifted = load_run(changed(train={"misaligned_slice_rate": 0.1}))
    assert shifted.coordinates.margin_zyx == (6, 12, 13)


def test_presets_and_architectures_come_from_elsewhere():
    assert not load_run(GOOD).coordinates.include_background
    assert load_run(changed(train={"preset": "dong2019"})).coordinates.include_background
    without = changed(train={"preset": "dong2019"}, coordinates={"include_background": False})
    assert not load_run(without).coordinates.include_background
    sizes = {name: SMALL[name] for name in ("fov_size_zyx", "deltas_zyx")}
    run = load_run({**GOOD, "init": "model", "model": sizes})
    again = load_run(run.as_written())
    assert again == run and again.model.model_fields_set == sizes.keys()


def test_the_defaults_with_initial_weights_are_those_of_fine_tuning():
    def train(**change):
        return load_run(changed(**{"init": "model", **change})).train

    fine = train()
    assert (fine.learning_rate, fine.warmup_steps, fine.use_best) == (1e-5, 100, True)
    fresh = load_run(GOOD).train
    assert (fresh.learning_rate, fresh.warmup_steps, fresh.use_best) == (1e-3, 0, False)
    given = train(train={"learning_rate": 1e-3, "warmup_steps": 0, "use_best": False})
    assert (given.learning_rate, given.warmup_steps, given.use_best) == (1e-3, 0, False)
    assert not train(volumes={"phantom": {**PHANTOM, "validate_box": "none"}}).use_best
    assert not train(train={"validation_steps": 0}).use_best
    assert not load_run({**SELECTING, "init": "model"}).train.use_best


def test_shipped_configurations_are_valid(pytestconfig):
    paths = list(pytestconfig.rootpath.glob("config/*.yaml"))
    configurations = [yaml.safe_load(path.read_text()) for path in paths]
    whole = [load_run(each) for each in configurations if "volumes" in each]
    assert len(whole) == len(paths) - 1  # demo-from-scratch.yaml is added to another


def test_the_last_checkpoints_are_known_before_training():
    run = load_run(SELECTING)
    assert run.train.kept_steps == [75, 100, 110] and run.selectable_steps == [100, 110]
    assert load_run({**SELECTING, "init": "model"}).selectable_steps == [0, 100, 110]
    assert load_run({**SELECTING, "select": {}}).selectable_steps == []
    assert load_run({**SELECTING, "train": {**SELECTING["train"], "max_steps": 100}}).train.kept_steps == [50, 75, 100]


VOLUME = {"image": "raw.h5:raw", "labels": "labels.h5:labels"}


@pytest.mark.parametrize("image", ["C:\\data\\raw.h5", "\\\\server\\raw.h5", "$DATA/raw.h5", "${DATA}/raw.h5"])
def test_a_path_of_another_system_is_named(image):
    with pytest.raises(ConfigError, match="image.*Write"):
        load_run({"volumes": {"cube": VOLUME | {"image": image}}})


def test_a_home_folder_is_expanded_and_a_dollar_in_a_name_or_url_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a$b.h5").touch()
    assert _checked_path("~/raw.h5:raw") == "/home/me/raw.h5:raw"
    for path in ("a$b.h5:raw", "https://host/raw.zarr?key=$a"):
        assert _checked_path(path) == path


def test_a_name_that_yaml_takes_for_something_else_belongs_in_quotes():
    with pytest.raises(ConfigError, match="quotes"):
        load_run({"volumes": {"cube": VOLUME}, "run": 7})


def test_names_are_short_and_whole_numbers_may_have_an_exponent():
    load_run({"volumes": {"x" * MAX_NAME: VOLUME}})
    with pytest.raises(ConfigError, match=str(MAX_NAME)):
        load_run({"volumes": {"x" * (MAX_NAME + 1): VOLUME}})
    assert TrainConfig(max_steps="1e5").max_steps == 100_000
    with pytest.raises(ValueError):
        TrainConfig(max_steps="1.5e0")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"train": {"max_step": 9}}, "max_steps: 9"),
        ({"train": {"depth": 2}}, 'model: {"depth": 2}'),
        ({"segmet": {}}, "segment: {}"),
    ],
)
def test_an_unknown_key_names_the_one_that_may_be_meant(given, line):
    with pytest.raises(ConfigError, match=re.escape(line)):
        load_run({**GOOD, **given})
