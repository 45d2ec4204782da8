"""The configuration of a run: relations between values, derived values, sources that are there."""

import json
import re

import numpy as np
import pytest
import yaml

from ffn.config import ModelConfig, SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.workflow.places import check_sources, segment_files, subvolume_boxes
from ffn.workflow.run import RunConfig, load_run

PHANTOM = {"synthetic": {"shape_zyx": [64, 48, 80]}}
VALIDATED = {**PHANTOM, "train_box": "0:40,0:48,0:80", "validate_box": "40:64,0:48,0:80"}
SMALL = {"fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3], "depth": 2, "features": 4}
GOOD = {
    "volumes": {"phantom": PHANTOM},
    "model": SMALL,
    "train": {"permutable_axes": ["y"]},
    "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
}


def changed(**sections):
    """GOOD with some sections updated."""
    merged = {key: dict(value) for key, value in GOOD.items()}
    for name, value in sections.items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) and value else value
    return merged


def require_one_line(change, message):
    with pytest.raises(ConfigError, match=message) as error:
        load_run(changed(**change))
    assert "\n" not in str(error.value)


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
            {"coordinates": {"margin_zyx": [9, 14, 15]}, "train": {"fov_policy": "max_pred", "fov_moves": 3}},
            r"margin_zyx: 9 on axis z is less than FOV radius . deltas × train.fov_moves \(10\)",
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
        ({"volumes": {"a b": PHANTOM}}, "'a b' is not a usable name"),
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
    ],
)
def test_sections_that_contradict_each_other_are_named_in_one_line(change, message):
    require_one_line(change, message)


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"image": "nowhere.h5:raw"}, "volumes.phantom.image: nowhere.h5: no such file"),
        ({"image": "nowhere/*.png"}, "volumes.phantom.image: .*nowhere"),
        ({**PHANTOM, "segment_box": "0:64,0:48,0:81"}, "segment_box: .* leaves the image"),
        ({**PHANTOM, "segment_box": "0:64,0:48,0:12"}, "larger than volumes.phantom.segment_box"),
        (
            {**PHANTOM, "segment_box": "0:30,0:48,0:80", "evaluate_box": "20:40,0:48,0:80"},
            "evaluate_box: .* leaves the labelled",
        ),
        ({**PHANTOM, "skeletons": "no/swc"}, "volumes.phantom.skeletons: no/swc does not exist"),
        ({**PHANTOM, "train_box": "0:12,0:48,0:80"}, "12 voxels on axis z, at least 13 are needed"),
    ],
)
def test_sources_are_checked(volume, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("model", random_model())
    with pytest.raises(ConfigError, match=message):
        check_sources(
            load_run(
                {
                    **GOOD,
                    "volumes": {"phantom": volume},
                    "init": "model",
                    "train": {"max_steps": 0, "permutable_axes": []},
                }
            )
        )


def random_model(**changes):
    config = ModelConfig(**{**SMALL, **changes}, image_mean=0, image_stddev=1)
    return Model(config, {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}, {})


@pytest.mark.parametrize("value", [5, True, "text", "threads", [1, 2]])
@pytest.mark.parametrize(
    "section", [name for name in RunConfig.model_fields if name not in ("run", "rng_seed", "init")]
)
def test_a_section_that_is_no_section_is_one_line(section, value):
    with pytest.raises(ConfigError, match=f"^{section}: found {re.escape(repr(value))}, .*dictionary") as caught:
        load_run({**GOOD, section: value})
    assert "\n" not in str(caught.value)


def test_initial_weights_of_another_fov_are_refused(tmp_path):
    save_model(tmp_path / "model", random_model(fov_size_zyx=(9, 11, 15)))
    with pytest.raises(ConfigError, match="model.fov_size_zyx: .9, 11, 13. is not that of init .*9, 11, 15"):
        check_sources(load_run({**GOOD, "init": str(tmp_path / "model")}))


def test_a_checkpoint_of_ours_is_checked_like_a_model(tmp_path):
    for fov, path in (([9, 11, 13], tmp_path / "step-00000010"), ([9, 11, 15], tmp_path / "step-00000020")):
        model = {**ModelConfig(**SMALL).model_dump(mode="json"), "fov_size_zyx": fov}
        path.mkdir()
        (path / "manifest.json").write_text(json.dumps({"step": 10, "fingerprint": {"model": model}, "sha256": {}}))
    check_sources(load_run({**GOOD, "init": str(tmp_path / "step-00000010")}))
    with pytest.raises(ConfigError, match="model.fov_size_zyx: .9, 11, 13. is not that of init .*20 .*9, 11, 15"):
        check_sources(load_run({**GOOD, "init": str(tmp_path / "step-00000020")}))


def test_missing_initial_weights_are_named():
    with pytest.raises(ConfigError, match="init: 'no/model' is neither"):
        check_sources(load_run({**GOOD, "init": "no/model"}))


def test_labels_of_another_part_are_trained_on_but_not_scored(tmp_path):
    for name, dtype, box in (
        ("raw", np.uint8, Box((0, 0, 0), (64, 48, 80))),
        ("labels", np.uint64, Box((0, 0, 0), (30, 48, 80))),
    ):
        with create_volume(f"{tmp_path}/{name}.h5:{name}", dtype, Placement(box, (10, 10, 10))):
            pass
    volume = {"image": f"{tmp_path}/raw.h5", "labels": f"{tmp_path}/labels.h5", "segment_box": "30:64,0:48,0:80"}
    place = check_sources(load_run({**GOOD, "volumes": {"cube": volume}}))["cube"]
    assert str(place.train_box) == "0:30,0:48,0:80"
    assert not place.is_evaluated and not place.shows_truth
    assert place.voxel_size_zyx_nm == (10, 10, 10)


def test_validation_data_are_apart_and_hold_a_patch():
    def check(**volume):
        return check_sources(load_run({**GOOD, "volumes": {"a": {**VALIDATED, **volume}, "b": PHANTOM}}))["a"]

    assert check().validate_box == Box.parse("40:64,0:48,0:80")
    assert check(train_box="none", validate_box="all").validate_box == Box.parse("0:64,0:48,0:80")
    assert not check(validate_box="52:64,0:48,0:80").validate_box.is_empty  # thinner than a patch
    for box, message in (
        ("39:64,0:48,0:80", "overlaps train_box 0:40,0:48,0:80, so the scores would be those of training data"),
        ("58:64,0:48,0:80", "has no voxel whose training patch of .13, 17, 19. lies in the labelled part of the image"),
        ("40:65,0:48,0:80", "is empty or leaves the labelled part of the image, 0:64,0:48,0:80"),
    ):
        with pytest.raises(ConfigError, match=f"volumes.a.validate_box: {box} {message}"):
            check(validate_box=box)


def test_scores_on_training_data_are_noticed():
    places = check_sources(load_run({**GOOD, "volumes": {"a": PHANTOM, "b": {**PHANTOM, "train_box": "none"}}}))
    assert places["a"].is_scored_on_training_data and not places["b"].is_scored_on_training_data


def test_lom_and_margin_follow_the_model():
    run = load_run(GOOD)
    assert run.partition.lom_radius_zyx == run.coordinates.margin_zyx == (6, 8, 9)
    given = load_run(changed(partition={"lom_radius_zyx": [3, 3, 3]}))
    assert given.partition.lom_radius_zyx == (3, 3, 3)
    far = load_run(changed(train={"fov_policy": "max_pred", "fov_moves": 3}))
    assert far.coordinates.margin_zyx == (10, 14, 15) and far.partition.lom_radius_zyx == (6, 8, 9)
    shifted = load_run(changed(train={"misaligned_slice_rate": 0.1, "max_misalignment": 2}))
    assert shifted.coordinates.margin_zyx == (6, 10, 11)
    aligned = load_run(changed(train={"max_misalignment": 2}))
    assert aligned.coordinates.margin_zyx == (6, 8, 9)


def test_subvolumes_cover_the_box_and_are_named_by_their_start():
    run = load_run(GOOD)
    boxes = subvolume_boxes(run, check_sources(run)["phantom"])
    assert "z000024-y000008-x000040" in boxes
    assert all(box.shape == (40, 40, 40) for box in boxes.values())


@pytest.mark.parametrize("path", ["config.yaml", "config/fib25.yaml"])
def test_shipped_configurations_are_valid(path, pytestconfig):
    run = load_run(yaml.safe_load((pytestconfig.rootpath / path).read_text()))
    assert run.model.depth >= 2


def test_a_mask_has_to_be_there_and_to_cover_what_is_segmented(tmp_path):
    mask = f"{tmp_path}/mask.h5:tissue"
    run = load_run(changed(segment={"mask": mask}))
    with pytest.raises(ConfigError, match="segment.mask: .*mask.h5: no such file"):
        check_sources(run)
    with create_volume(mask, np.uint8, Placement(Box((0, 0, 0), (60, 48, 80)))):
        pass
    with pytest.raises(
        ConfigError,
        match="segment.mask: .*covers 0:60,0:48,0:80, .* volumes.phantom.segment_box 0:64,0:48,0:80",
    ):
        check_sources(run)
    less = {"phantom": {**PHANTOM, "segment_box": "0:60,0:48,0:80", "evaluate_box": "none"}}
    check_sources(load_run({**changed(segment={"mask": mask}), "volumes": less}))


def test_listed_seeds_are_read_before_anything_runs(tmp_path):
    path = tmp_path / "seeds.csv"
    run = load_run(changed(segment={"seed_policy": "points", "seed_points": str(path)}))
    with pytest.raises(ConfigError, match="segment.seed_points: seed points: found '.*seeds.csv', expected a CSV file"):
        check_sources(run)
    path.write_text("z,y,x\n1,2\n")
    with pytest.raises(ConfigError, match="segment.seed_points: .*seeds.csv line 2: found '1,2'"):
        check_sources(run)
    path.write_text("z,y,x\n1,2,3\n")
    check_sources(run)


def test_files_that_segmentation_reads_are_inputs_of_the_rule(tmp_path):
    points, mask = tmp_path / "seeds.csv", tmp_path / "mask.h5"
    points.touch()
    mask.touch()
    listed = {"seed_policy": "points", "seed_points": str(points)}
    assert segment_files(SegmentConfig(mask=f"{mask}:tissue", **listed)) == [str(mask), str(points)]
    assert segment_files(SegmentConfig(mask=str(mask))) == [str(mask)]
    assert segment_files(SegmentConfig(mask=str(tmp_path), seed_policy="points", seed_points="1,2,3")) == []
    assert segment_files(SegmentConfig(mask="precomputed://https://example.org/mask")) == []
