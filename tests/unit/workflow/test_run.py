"""The configuration of a run: relations between values, derived values, sources that are there."""

import re

import pytest
import yaml

from ffn.errors import ConfigError
from ffn.workflow.run import RunConfig, load_run

from .runs import GOOD, PHANTOM, SELECTING, SMALL, VALIDATED, changed, require_one_line

UNUSABLE = ("a b", "-a", "²", "ü", "a{b}", "", "a\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"volume": {}}, "volume: unknown key"),
        ({"train": {"step": 5}}, "train.step: unknown key"),
        ({"train": {"max_steps": "many"}}, "train.max_steps: found 'many', .*integer"),
        ({"train": {"max_steps": -1}}, "train.max_steps: found -1, .*greater than or equal to 0"),
        ({"model": {"fov_size_zyx": [9, 10, 13]}}, "model: fov_size_zyx: 10 on axis y is even"),
        ({"model": {"deltas_zyx": [5, 3, 3]}}, "deltas_zyx: 5 on axis z is not less than half the FOV"),
        ({"model": {"deltas_zyx": [0, 0, 0]}}, "never moves"),
        ({"model": {"fov_size_zyx": [9, 11]}}, "model.fov_size_zyx.2: is missing"),
        ({"coordinates": {"margin_zyx": [2, 8, 9]}}, "coordinates.margin_zyx: 2 on axis z is less than"),
        (
            {"coordinates": {"margin_zyx": [11, 17, 18]}, "train": {"fov_policy": "max_pred", "fov_moves": 3}},
            r"margin_zyx: 11 on axis z is less than FOV radius . deltas × \(train.fov_moves \+ 1\) \(12\)",
        ),
        (
            {"coordinates": {"margin_zyx": [6, 8, 9]}, "train": {"misaligned_slice_rate": 0.1}},
            r"margin_zyx: 8 on axis y is less than .* train.fov_moves . train.max_misalignment \(12\)",
        ),
        (
            {"subvolumes": {"overlap_zyx": [8, 16, 16]}},
            "subvolumes.overlap_zyx: 8 on axis z is less than the FOV",
        ),
        ({"subvolumes": {"size_zyx": [16, 40, 40]}}, "16 on axis z is not less than subvolumes.size_zyx"),
        ({"volumes": {"phantom": {}}}, "volumes.phantom: needs either 'image' or 'synthetic', found none"),
        ({"volumes": {"phantom": {**PHANTOM, "image": "x.h5"}}}, "found both"),
        *[({"volumes": {name: PHANTOM}}, "is not a usable name") for name in UNUSABLE],
        ({"init": "a\nb"}, r"init: 'a\\nb' is not one line of text, expected a path"),
        (
            {"segment": {"mask": "mask.h5:tissue"}},
            "segment: mask: mask.h5:tissue is found here, expected with its volume. Give volumes.<name>.masks, a list",
        ),
        ({"volumes": {"phantom": {**PHANTOM, "masks": [{"path": ""}]}}}, "masks.0.path: '' is not one line of text"),
        (
            {"volumes": {"phantom": {**PHANTOM, "normalize": "mean"}}},
            "normalize: mean is no normalisation, expected",
        ),
        (
            {"volumes": {"phantom": {**PHANTOM, "normalize": {"mean": 3}}}},
            "normalize: .* is no normalisation, expected",
        ),
        ({"segment": {"canvases": 0}}, "segment.canvases: found 0, input should be 'auto' or be greater than 0$"),
        (
            {"agglomerate": {"canvases": "x"}},
            "agglomerate.canvases: found 'x', .* 'auto' or be a valid integer",
        ),
        ({"coordinates": {"margin_zyx": 9}}, r"coordinates.margin_zyx: found 9, expected a list in \[ \]$"),
        ({"volumes": {"phantom": {**PHANTOM, "train_box": "0:9"}}}, "train_box: .*'0:9' is not a box"),
        ({"volumes": {"phantom": {**PHANTOM, "segment_box": "5:5,0:4,0:4"}}}, "is empty"),
        ({"volumes": {}}, "volumes: .*at least 1 item"),
        ({"train": {"max_steps": 0}}, "train.max_steps: 0 keeps the initial weights"),
        (
            {"train": {"permutable_axes": ["z", "x"]}},
            "train.permutable_axes: z and x differ in FOV or deltas",
        ),
        ({"run": ".."}, "run: found '..'"),
        ({"train": {"learning_rate": float("inf")}}, "train.learning_rate: found inf"),
        ({"segment": {"init_activation": 0.8}}, "no seed would ever start"),
        ({"run": "a/b"}, "run: found 'a/b'"),
        ({"rng_seed": -3}, "rng_seed: found -3"),
        ({"partition": {"thresholds": [0.5, 0.2]}}, "must be 1 to 253 ascending"),
        ({"segment": {"move_threshold": 1.5}}, "segment.move_threshold: found 1.5"),
    ],
)
def test_bad_configuration_is_one_line(change, message):
    require_one_line(change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"consensus": {"enabled": True}, "segment": {"seed_order": "reversed"}},
            "segment.seed_order: reversed, but consensus.enabled takes both orders",
        ),
        (
            {"volumes": {"a": PHANTOM, "b": {"image": "b.h5:raw", "validate_box": "all"}}},
            "volumes.b: validate_box: all needs labels",
        ),
        (
            {"volumes": {"a": PHANTOM, "b": {"image": "b.h5:raw", "labels_offset_zyx": [0, 0, 4]}}},
            r"volumes.b: labels_offset_zyx: \(0, 0, 4\) needs labels. Give some, or leave the offset out",
        ),
        (
            {"volumes": {"a": {**PHANTOM, "mip": 0, "ignore_labels": [7]}}},
            "volumes.a: 'synthetic' brings its own 'mip' and 'ignore_labels'",
        ),
        (
            {"volumes": {"a": {**PHANTOM, "labels_offset_zyx": [0, 0, 4]}}},
            "volumes.a: 'synthetic' brings its own",
        ),
        ({"train": {"use_best": True}}, "train.use_best: true, but training is not validated"),
        (
            {"train": {"use_best": True, "validation_steps": 0}, "volumes": {"a": VALIDATED}},
            "train.use_best: true, but training is not validated",
        ),
        (
            {
                **{"train": {"use_best": True}, "volumes": {"a": VALIDATED}},
                "select": {"checkpoints": 2, "box": "0:20,0:20,0:20"},
            },
            "train.use_best: true, but select.checkpoints: 2 chooses",
        ),
        (
            {"volumes": {"b": {**PHANTOM, "normalize": "match"}}},
            "volumes.phantom.normalize: found training, expected match as for b, or volume.",
        ),
    ],
)
def test_sections_that_contradict_each_other_are_named_in_one_line(change, message):
    require_one_line(change, message)


def test_volumes_that_training_does_not_read_may_have_other_grey_levels():
    matched = {"a": {**PHANTOM, "normalize": "match"}}
    validated = {**VALIDATED, "train_box": "none"}
    for unread, train in (({"train_box": "none"}, {}), (validated, {"validation_steps": 0})):
        volumes = {**matched, "b": {**PHANTOM, **unread}}
        assert load_run({**GOOD, "volumes": volumes, "train": {**GOOD["train"], **train}}).volumes["b"]
    given = {**SMALL, "image_mean": 120, "image_stddev": 30}
    assert load_run({**GOOD, "volumes": {**matched, "b": PHANTOM}, "model": given})


@pytest.mark.parametrize("value", [5, True, "text", "threads", [1, 2]])
@pytest.mark.parametrize(
    "section", [name for name in RunConfig.model_fields if name not in ("run", "rng_seed", "init")]
)
def test_a_section_that_is_no_section_is_one_line(section, value):
    message = f"^{section}: found {re.escape(repr(value))}, expected lines of 'name: value' below it$"
    with pytest.raises(ConfigError, match=message) as caught:
        load_run({**GOOD, section: value})
    assert "\n" not in str(caught.value)


def test_an_empty_section_has_the_defaults():
    sections = [name for name in RunConfig.model_fields if name not in ("run", "rng_seed", "volumes")]
    assert load_run({**dict.fromkeys(sections), **GOOD}) == load_run(GOOD)
    for required, message in (("volumes", "volumes: is missing"), ("run", "run: found None")):
        with pytest.raises(ConfigError, match=message):
            load_run({**GOOD, required: None})


def test_lom_and_margin_follow_the_model():
    run = load_run(GOOD)
    assert run.partition.lom_radius_zyx == run.coordinates.margin_zyx == (6, 8, 9)
    given = load_run(changed(partition={"lom_radius_zyx": [3, 3, 3]}))
    assert given.partition.lom_radius_zyx == (3, 3, 3)
    far = load_run(changed(train={"fov_policy": "max_pred", "fov_moves": 3}))
    assert far.coordinates.margin_zyx == (12, 17, 18) and far.partition.lom_radius_zyx == (6, 8, 9)
    shifted = load_run(changed(train={"misaligned_slice_rate": 0.1, "max_misalignment": 2}))
    assert shifted.coordinates.margin_zyx == (6, 10, 11)
    aligned = load_run(changed(train={"max_misalignment": 2}))
    assert aligned.coordinates.margin_zyx == (6, 8, 9)


def test_the_preset_of_the_paper_trains_on_background_too():
    assert not load_run(GOOD).coordinates.include_background
    assert load_run(changed(train={"preset": "dong2019"})).coordinates.include_background
    without = changed(train={"preset": "dong2019"}, coordinates={"include_background": False})
    assert not load_run(without).coordinates.include_background


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
    paths = [pytestconfig.rootpath / "config.yaml", *pytestconfig.rootpath.glob("config/*.yaml")]
    configurations = [yaml.safe_load(path.read_text()) for path in paths]
    whole = [load_run(each) for each in configurations if "volumes" in each]
    assert len(whole) == len(paths) - 1  # demo-from-scratch.yaml is added to another


def test_a_configuration_that_is_written_leaves_the_architecture_to_the_weights():
    sizes = {name: SMALL[name] for name in ("fov_size_zyx", "deltas_zyx")}
    run = load_run({**GOOD, "init": "model", "model": sizes})
    again = load_run(run.as_written())
    assert again == run and again.model.model_fields_set == sizes.keys()


def test_own_data_can_start_from_trained_weights_without_another_line(pytestconfig):
    values = yaml.safe_load((pytestconfig.rootpath / "config/own-data.yaml").read_text())
    assert load_run({**values, "init": "model"}).train.learning_rate == 1e-5
    assert load_run(values).train.learning_rate == 1e-3


def test_the_last_checkpoints_are_known_before_training():
    run = load_run(SELECTING)
    assert run.kept_steps == [75, 100, 110] and run.selectable_steps == [100, 110]
    assert load_run({**SELECTING, "init": "model"}).selectable_steps == [0, 100, 110]
    assert load_run({**SELECTING, "select": {}}).selectable_steps == []
    assert load_run({**SELECTING, "train": {**SELECTING["train"], "max_steps": 100}}).kept_steps == [50, 75, 100]


def test_the_shipped_defaults_select_no_checkpoint(pytestconfig):
    run = load_run(yaml.safe_load((pytestconfig.rootpath / "config.yaml").read_text()))
    assert run.selectable_steps == []
