"""Sources are opened and boxes checked before the first job starts."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.model.store import save_model
from ffn.workflow.arguments import import_flags
from ffn.workflow.config_files import ROOT
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources, files_among, open_run
from ffn.workflow.run import load_run

from .runs import (
    GOOD,
    PHANTOM,
    SELECTING,
    SHAPE,
    SMALL,
    UNTRAINED,
    VALIDATED,
    check,
    random_model,
    refuse,
    with_phantom,
    write,
)


def test_all_mistakes_come_at_once(tmp_path):
    image = {"image": write(tmp_path / "raw.zarr", np.uint8, (64, 48, 80)), "train_box": "none"}
    volumes = {"a": {**image, "segment_box": "0:99,0:48,0:80"}, "b": {"image": "no.h5:raw", "labels": "no.tif"}}
    unknown = {"train": {"max_step": 9}, "fill": {"depth": 2}}
    for options, others in (({}, []), (unknown, ["train.max_step", "fill.depth"])):
        with pytest.raises(ConfigError) as error:
            open_run({"volumes": volumes, "init": "model", **options})
        named = [line.partition(":")[0] for line in str(error.value).splitlines()]
        expected = ["volumes.b.image", "volumes.b.labels", *(others or ["init", "volumes.a.segment_box"])]
        assert sorted(named) == sorted(expected)


@pytest.mark.parametrize(
    ("volume", "named"),
    [
        ({"image": "nowhere.h5:raw"}, "volumes.phantom.image: nowhere.h5"),
        ({"image": "nowhere/*.png"}, "volumes.phantom.image: .*nowhere"),
        ({**PHANTOM, "segment_box": "0:64,0:48,0:81"}, "volumes.phantom.segment_box: 0:64,0:48,0:81"),
        ({**PHANTOM, "segment_box": "0:30,0:48,0:80", "evaluate_box": "20:40,0:48,0:80"}, "evaluate_box: 20:40,0:48"),
        ({**PHANTOM, "skeletons": "no/swc"}, "volumes.phantom.skeletons: no/swc"),
    ],
)
def test_sources_are_checked(volume, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("model", random_model())
    refuse({**GOOD, "volumes": {"phantom": volume}, "init": "model", "train": UNTRAINED}, named)


def test_a_training_box_has_room_for_a_patch():
    small = with_phantom(train_box="0:12,0:48,0:80")
    refuse(small, "volumes.phantom.train_box: 0:12,0:48,0:80 .* 13")


def test_initial_weights_have_to_be_there_and_to_fit(tmp_path):
    refuse({**GOOD, "init": "no/model"}, "init: 'no/model'")
    save_model(tmp_path / "model", random_model(fov_size_zyx=(9, 11, 15)))
    init = {**GOOD, "init": str(tmp_path / "model")}
    check(init)  # training gives them the FOV of the configuration
    run = load_run({**init, "train": {"max_steps": 0}})
    made = Pipeline(run, check_sources(run))
    assert made.imported == [init["init"]] and any("9, 11, 15" in warning for warning in made.warnings)
    assert import_flags(made).split()[:4] == ["--fov-size", "9", "11", "13"]
    save_model(tmp_path / "wide", random_model(features=5))
    for train in (GOOD["train"], UNTRAINED):
        wide = {**GOOD, "init": str(tmp_path / "wide"), "train": train}
        refuse(wide, "model.features: .*4.*5")
        check({**wide, "model": {key: SMALL[key] for key in ("fov_size_zyx", "deltas_zyx")}})


def test_weights_and_affinities_of_ours_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = "config/weights/fib-sem"
    given = {"init": folder, "affinities": {"enabled": True, "network": f"{folder}/affinities.h5"}}
    run, _, _ = open_run({"volumes": {"phantom": PHANTOM}, "train": UNTRAINED, **given})
    assert Path(run.affinities.network).parent == Path(run.init) == ROOT / folder and run.affinities.max_steps == 0


def test_affinities_are_learnt_from_voxels_of_one_size():
    other = {"synthetic": {**PHANTOM["synthetic"], "voxel_size_zyx_nm": [12, 10, 10]}}
    refuse({**GOOD, "volumes": {"a": PHANTOM, "b": other}, "affinities": {"enabled": True}}, "^volumes.b: .*10")


def test_a_checkpoint_of_ours_is_checked_like_a_model(tmp_path):
    for fov, path in (([9, 11, 13], tmp_path / "step-00000010"), ([9, 11, 15], tmp_path / "step-00000020")):
        model = {**ModelConfig(**SMALL).model_dump(mode="json"), "fov_size_zyx": fov}
        path.mkdir()
        (path / "manifest.json").write_text(json.dumps({"step": 10, "fingerprint": {"model": model}, "sha256": {}}))
    check({**GOOD, "init": str(tmp_path / "step-00000010"), "train": UNTRAINED})
    run = load_run({**GOOD, "init": str(tmp_path / "step-00000020"), "train": UNTRAINED})
    assert Pipeline(run, check_sources(run)).models.resized


def test_validation_data_are_apart_and_hold_a_patch():
    def configured(**volume):
        return {**GOOD, "volumes": {"a": {**VALIDATED, **volume}, "b": PHANTOM}}

    assert check(configured())["a"].validate_box == Box.parse("40:64,0:48,0:80")
    alone = configured(train_box="none", validate_box="all")
    assert check(alone)["a"].validate_box == Box.from_shape(SHAPE)
    assert not check(configured(validate_box="52:64,0:48,0:80"))["a"].validate_box.is_empty  # thinner than a patch
    # trained on; without room for the centre of a patch; outside of the labels
    for box in ("39:64,0:48,0:80", "58:64,0:48,0:80", "40:65,0:48,0:80"):
        refuse(configured(validate_box=box), f"volumes.a.validate_box: {box}")


def fine_tuned(tmp_path, **volumes):
    save_model(tmp_path / "model", random_model())
    return {**GOOD, "init": str(tmp_path / "model"), "volumes": volumes}


def test_fine_tuning_keeps_a_part_of_the_training_box_for_validation(tmp_path):
    part, none = ({**PHANTOM, "train_box": box} for box in ("0:40,0:48,10:50", "none"))
    places = check(fine_tuned(tmp_path, a=PHANTOM, b=part, c=none))
    boxes = [(str(place.train_box), str(place.validate_box)) for place in (places["a"], places["b"])]
    assert boxes[0] == ("0:64,0:48,0:63", "0:64,0:48,63:80")
    assert boxes[1] == ("0:40,0:36,10:50", "0:40,36:48,10:50")
    assert not places["c"].config.is_validated_on
    given = check(fine_tuned(tmp_path, a=PHANTOM, b=VALIDATED))
    assert given["a"].train_box == Box.from_shape(SHAPE) and not given["a"].config.is_validated_on
    assert not check(GOOD)["phantom"].config.is_validated_on


def test_labels_without_room_for_a_validation_box_are_refused(tmp_path):
    small = {**PHANTOM, "train_box": "0:13,0:17,0:20"}
    refuse(fine_tuned(tmp_path, a=small), "volumes.a.validate_box: auto")
    without = {**small, "validate_box": "none"}
    assert not check(fine_tuned(tmp_path, a=without))["a"].config.is_validated_on
    assert not check(fine_tuned(tmp_path, a=small, b=PHANTOM))["a"].config.is_validated_on


def test_a_mask_has_to_be_there_and_to_cover_the_boxes(tmp_path):
    mask = tmp_path / "mask.zarr"
    masks = {"masks": [{"path": str(mask)}, {"box": "0:9,0:9,0:9"}]}
    refuse(with_phantom(**masks), "volumes.phantom.masks.*mask.zarr")
    write(mask, np.uint8, (60, 48, 80))
    refuse(with_phantom(**masks), "volumes.phantom.masks.*0:60,0:48,0:80.*0:64,0:48,0:80")
    part = "0:60,0:48,0:80"
    check(with_phantom(**masks, train_box=part, segment_box=part, evaluate_box="none"))
    place = {"train_box": "0:30,0:48,0:80", "segment_box": "none", "evaluate_box": "none", **masks}
    write(mask, np.uint8, (40, 48, 80))
    refuse({**SELECTING, **{"volumes": with_phantom(**place)["volumes"]}}, "volumes.phantom.masks.* 30:44,")


@pytest.mark.parametrize(
    ("dtype", "start", "said"),
    [(np.uint64, (31, 0, 0), None), (np.uint64, (32, 0, 0), "32:34,0:5,0:6"), (np.float32, (31, 0, 0), None)],
)
def test_given_segments_have_to_lie_in_the_segment_box(tmp_path, dtype, start, said):
    labels = write(tmp_path / "soma.zarr", dtype, Box.from_shape((2, 5, 6), start), 20)
    config = {**with_phantom(init_segmentation=labels), "agglomerate": {"enabled": True}}
    if said is None:
        check(config)
    else:
        refuse(config, f"volumes.phantom.init_segmentation: .*{said}")


FILES = {
    "segment.seed_points": ("z,y,x\n1,2,3\n", ["z,y,x\n1,2\n"]),
    "volumes.phantom.corrections": (
        "action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9,0,0\n",
        ["action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9999,0,0\n"],
    ),
    "volumes.phantom.skeletons": ("1 0 10 10 10 1 -1\n2 0 10 10 50 1 1\n", ["1 0 10 10 10 1 -1\n"]),
}


@pytest.mark.parametrize("key", FILES)
def test_files_are_read_before_anything_runs(key, tmp_path):
    good, damaged = FILES[key]
    path = tmp_path / f"given.{'swc' if key.endswith('skeletons') else 'csv'}"
    *sections, name = key.split(".")
    given = {name: str(path)}
    volume = given if sections[0] == "volumes" else {}
    config = {**with_phantom(**volume), "agglomerate": {"enabled": True}}
    config |= {} if volume else {sections[0]: given}
    refuse(config, f"^{key}: .*given")
    for text in damaged:
        path.write_text(text)
        refuse(config, f"^{key}: .*given")
    path.write_text(good)
    check(config)


def test_corrections_of_a_volume_that_is_not_merged_are_refused(tmp_path):
    (tmp_path / "c.csv").write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\n")
    given = {"corrections": str(tmp_path / "c.csv")}
    refuse(with_phantom(**given), "volumes.phantom.corrections: .*agglomerate.enabled")
    unsegmented = with_phantom(**given, segment_box="none")
    refuse({**unsegmented, "agglomerate": {"enabled": True}}, "volumes.phantom.corrections: .*segment_box")


def test_files_that_stages_read_are_inputs_of_their_rules(tmp_path):
    mask = tmp_path / "mask.h5"
    mask.touch()
    found = files_among(f"{mask}:tissue", str(tmp_path), None, "precomputed://https://example.org/mask", "1,2,3")
    assert found == files_among(str(mask)) == [str(mask)] and files_among(f"{tmp_path}/none.yaml") == []
    finished = tmp_path / "coarse.zarr/zarr.json"
    finished.parent.mkdir()
    finished.touch()
    assert files_among(f"{tmp_path}/coarse.zarr", f"{tmp_path}/coarse.zarr/0") == [str(finished)] * 2


def test_an_input_behind_a_link_is_the_users_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other/folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to("other/folder")
    for name in ("mask.h5", "other/mask.h5"):
        (tmp_path / name).touch()
    assert files_among("link/../mask.h5", "././mask.h5") == ["link/../mask.h5", "mask.h5"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"checkpoints": 4}, "select.checkpoints: 4"),
        ({"box": None}, "select: box: None"),
        ({"box": "all"}, "select: box: all"),
        ({"volume": "other"}, "select.volume: 'other'"),
        ({"box": "30:45,0:48,0:80"}, "select.box: 30:45.* volumes.phantom.evaluate_box 44:64"),
        ({"box": "30:44,0:48,0:81"}, "select.box: 30:44,0:48,0:81"),
    ],
)
def test_a_bad_selection_stops_before_anything_runs(change, named):
    check(SELECTING)
    refuse({**SELECTING, "select": {**SELECTING["select"], **change}}, named)


def test_a_stack_thinner_than_the_fov_can_be_segmented_and_judged_but_not_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("model", random_model())
    for name, dtype in (("image", np.uint8), ("labels", np.uint64)):
        np.save(f"{name}.npy", np.zeros((3, 48, 80), dtype))
    thin = {"image": "image.npy", "voxel_size_zyx_nm": [10, 10, 10]}
    config = {**GOOD, "volumes": {"thin": thin}, "init": "model", "train": UNTRAINED}
    assert check(config)["thin"].segment_box.shape == (3, 48, 80)
    refuse({**config, "segment": {"mirror": False}}, "volumes.thin: box 0:3,0:48,0:80")

    boxes = dict.fromkeys(["train_box", "validate_box", "segment_box", "evaluate_box"], "none")
    volumes = {**SELECTING["volumes"], "thin": {**thin, "labels": "labels.npy", **boxes}}
    chosen = {**SELECTING["select"], "volume": "thin", "box": "0:3,0:48,0:80"}
    selecting = {**SELECTING, "volumes": volumes, "select": chosen}
    run = load_run(selecting)
    canvas = Box.from_shape((3, 48, 80)).grow(run.model.fov_radius_zyx)
    assert Pipeline(run, check_sources(run)).selection_voxels == canvas.num_voxels
    refuse({**selecting, "segment": {"mirror": False}}, "volumes.thin: box 0:3,0:48,0:80")


def test_a_path_that_snakemake_would_misread_is_refused():
    refuse(with_phantom(masks=[{"path": "{soma}.h5"}]), r"volumes.phantom.masks.* \{\}")
