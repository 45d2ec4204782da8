"""Sources are opened and boxes checked before the first job starts."""

import functools
import http.server
import json
import threading
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import zarr
from PIL import Image

from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.workflow import sources
from ffn.workflow.arguments import import_flags, source
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources, files_among, open_run
from ffn.workflow.run import load_run

from ...volumes import create_volume
from .runs import GOOD, PHANTOM, SELECTING, SMALL, VALIDATED
from .test_pipeline import Wildcards

UNTRAINED = {"max_steps": 0, "permutable_axes": []}
SHAPE = (64, 48, 80)  # of PHANTOM


def check(config):
    return check_sources(load_run(config))


def refuse(config, named):
    with pytest.raises(ConfigError, match=named) as error:
        check(config)
    assert "\n" not in str(error.value)


def test_all_mistakes_come_at_once(tmp_path):
    image = {"image": write(tmp_path / "raw.zarr", np.uint8, (64, 48, 80)), "train_box": "none"}
    volumes = {"a": {**image, "segment_box": "0:99,0:48,0:80"}, "b": {"image": "no.h5:raw", "labels": "no.tif"}}
    for options, others in (
        ({}, []),
        ({"train": {"max_step": 9}, "fill": {"depth": 2}}, ["train.max_step", "fill.depth"]),
    ):
        with pytest.raises(ConfigError) as error:
            open_run({"volumes": volumes, "init": "model", **options})
        named = [line.partition(":")[0] for line in str(error.value).splitlines()]
        expected = ["volumes.b.image", "volumes.b.labels", *(others or ["init", "volumes.a.segment_box"])]
        assert sorted(named) == sorted(expected)


def with_phantom(**volume):
    return {**GOOD, "volumes": {"phantom": {**PHANTOM, **volume}}}


def write(path, dtype, box, size=10):
    """Create a store without voxels."""
    box = Box.from_shape(box) if isinstance(box, tuple) else box
    with create_volume(str(path), dtype, Placement(box, (size,) * 3)):
        return str(path)


@pytest.mark.parametrize(
    ("volume", "named"),
    [
        ({"image": "nowhere.h5:raw"}, "volumes.phantom.image: nowhere.h5"),
        ({"image": "nowhere/*.png"}, "volumes.phantom.image: .*nowhere"),
        ({**PHANTOM, "segment_box": "0:64,0:48,0:81"}, "volumes.phantom.segment_box: 0:64,0:48,0:81"),
        (
            {**PHANTOM, "segment_box": "0:30,0:48,0:80", "evaluate_box": "20:40,0:48,0:80"},
            "volumes.phantom.evaluate_box: 20:40,0:48,0:80",
        ),
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


def random_model(**changes):
    config = ModelConfig(**{**SMALL, **changes}, image_mean=0, image_stddev=1)
    return Model(config, {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}, {})


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
        refuse(wide, "model.features: 4.*5")
        check({**wide, "model": {key: SMALL[key] for key in ("fov_size_zyx", "deltas_zyx")}})


def test_a_checkpoint_of_ours_is_checked_like_a_model(tmp_path):
    for fov, path in (([9, 11, 13], tmp_path / "step-00000010"), ([9, 11, 15], tmp_path / "step-00000020")):
        model = {**ModelConfig(**SMALL).model_dump(mode="json"), "fov_size_zyx": fov}
        path.mkdir()
        (path / "manifest.json").write_text(json.dumps({"step": 10, "fingerprint": {"model": model}, "sha256": {}}))
    check({**GOOD, "init": str(tmp_path / "step-00000010"), "train": UNTRAINED})
    run = load_run({**GOOD, "init": str(tmp_path / "step-00000020"), "train": UNTRAINED})
    assert Pipeline(run, check_sources(run)).models.resized


def test_labels_of_another_part_are_trained_on_but_not_scored(tmp_path):
    image, labels = write(tmp_path / "raw.zarr", np.uint8, SHAPE), write(tmp_path / "l.zarr", np.uint64, (30, 48, 80))
    place = check({**GOOD, "volumes": {"a": {"image": image, "labels": labels, "segment_box": "30:64,0:48,0:80"}}})["a"]
    assert str(place.train_box) == "0:30,0:48,0:80"
    assert not place.is_evaluated and not place.shows_truth
    assert place.voxel_size_zyx_nm == (10, 10, 10)


def write_image(path, dtype, sizes):
    """Write an OME-Zarr image with isotropic mips of these voxel sizes that covers 1280 × 1120 × 1440 nm."""
    group = zarr.create_group(path, zarr_format=3)
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    datasets = [
        {"path": str(mip), "coordinateTransformations": [{"type": "scale", "scale": [size] * 3}]}
        for mip, size in enumerate(sizes)
    ]
    for mip, size in enumerate(sizes):
        array = group.create_array(str(mip), shape=(1280 // size, 1120 // size, 1440 // size), dtype=dtype)
        array[0, 0, 0] = 1  # an array without chunks is refused
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return str(path)


@pytest.mark.parametrize("choice", [{"mip": 1}, {"voxel_size_zyx_nm": [20, 20, 20]}])
def test_labels_are_read_at_the_resolution_of_the_image(tmp_path, choice):
    image = write_image(tmp_path / "image.zarr", np.uint8, (10, 20, 40))
    labels = write_image(tmp_path / "labels.zarr", np.uint64, (20, 40))
    volume = {"image": image, "labels": labels, **choice}
    place = check({**GOOD, "volumes": {"cube": volume}})["cube"]
    assert str(place.image) == str(place.labels) == "0:64,0:56,0:72"
    assert place.voxel_size_zyx_nm == (20, 20, 20)


def coarse(tmp_path, labels_size=None, size=None, **volume):
    """Place and `ffn ingest` of mip 1 of an image of 128 × 99 × 160 voxels of 10 nm, and of its labels."""
    for name, dtype, shape, own in (
        ("raw", np.uint8, (128, 99, 160), size),
        ("labels", np.uint64, (60, 81, 160), labels_size),
    ):
        with h5py.File(f"{tmp_path}/{name}.h5", "w") as file:
            file.create_dataset(name, shape, dtype)
            if own:
                file[name].attrs["voxel_size_nm"] = (own,) * 3
    volume = {"image": f"{tmp_path}/raw.h5:raw", "labels": f"{tmp_path}/labels.h5:labels", "mip": 1, **volume}
    run = load_run({**GOOD, "volumes": {"cube": volume, "phantom": PHANTOM}})
    pipeline = Pipeline(run, check_sources(run))
    return pipeline, [source(pipeline, "cube", key).partition(" ")[2] for key in ("image", "labels")]


def test_a_mip_that_the_image_does_not_have_is_made_and_boxes_are_in_its_voxels(tmp_path):
    boxes = {"train_box": "1:20,0:40,0:80", "segment_box": "20:64,0:50,0:80"}
    pipeline, commands = coarse(tmp_path, voxel_size_zyx_nm=[10] * 3, labels_offset_zyx=[3, 0, 0], **boxes)
    place = pipeline.places["cube"]
    assert place.image == Box.parse("0:64,0:50,0:80") and place.voxel_size_zyx_nm == (20, 20, 20)
    assert place.labels == Box.parse("1:32,0:41,0:80")
    options = "--voxel-size 10.0 10.0 10.0 --mip 1"
    assert commands == [options, f"{options} --offset 3 0 0"]
    assert pipeline.jobs.spec("ingest", Wildcards(volume="cube")).voxels == 8 * place.image.num_voxels
    assert not place.image_stays


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (10, "--voxel-size 10.0 10.0 10.0 --mip 1"),
        (5, "--voxel-size 5.0 5.0 5.0 --mip 2"),
        (20, "--voxel-size 20.0 20.0 20.0"),
    ],
)
def test_labels_of_another_resolution_get_the_voxels_of_the_image(tmp_path, size, options):
    pipeline, commands = coarse(tmp_path, labels_size=size, size=10, train_box="none", evaluate_box="none")
    assert commands == ["--voxel-size 10.0 10.0 10.0 --mip 1", options]
    assert pipeline.places["cube"].labels.shape[2] == 160 * size // 20


def labelled_part(tmp_path, **volume):
    """Configuration with a volume of SHAPE whose labels, 30 × 40 × 50, do not say where they lie."""
    files = {"image": tmp_path / "raw.zarr", "labels": tmp_path / "labels.zarr"}
    for name, dtype, shape in (("image", np.uint8, SHAPE), ("labels", np.uint64, (30, 40, 50))):
        if not files[name].exists():
            write(files[name], dtype, shape)
    return {**GOOD, "volumes": {"cube": {**{key: str(path) for key, path in files.items()}, **volume}}}


@pytest.mark.parametrize("kind", ["link", "glob"])
def test_labels_that_are_the_image_under_another_name_are_refused(tmp_path, kind):
    (tmp_path / "stack").mkdir()
    for z in range(64):
        Image.new("L", (80, 48)).save(tmp_path / f"stack/{z}.png")
    (tmp_path / "link").symlink_to("stack")
    labels = {"link": tmp_path / "link", "glob": tmp_path / "link/*.png"}[kind]
    size = {"voxel_size_zyx_nm": [10] * 3}
    refuse(
        labelled_part(tmp_path, image=str(tmp_path / "stack"), labels=str(labels), **size), "volumes.cube.labels: is"
    )


def test_labels_that_are_no_objects_in_3d_are_a_warning(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "mask.h5", "w") as file:
        file["mask"] = np.arange(30 * 40 * 50).reshape(30, 40, 50) // 25 % 2 * 255.0
    run = load_run(labelled_part(tmp_path, labels=f"{tmp_path}/mask.h5:mask"))
    with monkeypatch.context() as patch:  # every job checks the sources; only the plan reads voxels
        patch.setattr(sources, "doubts_about_labels", pytest.fail)
        places = check_sources(run)
    warnings = Pipeline(run, places).warnings
    assert any("cube.labels" in warning and "mask?" in warning for warning in warnings)


def test_labels_lie_where_the_configuration_says(tmp_path):
    placed = labelled_part(tmp_path, labels_offset_zyx=[34, 4, 10], evaluate_box="40:60,4:44,10:60")
    place = check(placed)["cube"]
    assert place.labels == place.train_box == Box.parse("34:64,4:44,10:60")
    assert check(labelled_part(tmp_path))["cube"].labels == Box.parse("0:30,0:40,0:50")
    for offset in ([35, 4, 10], [0, -1, 0]):
        named = rf"volumes.cube.labels_offset_zyx: \({', '.join(map(str, offset))}\)"
        refuse(labelled_part(tmp_path, labels_offset_zyx=offset), named)


def test_labels_of_a_part_that_do_not_say_which_are_noticed(tmp_path):
    assert check(labelled_part(tmp_path))["cube"].may_be_misplaced
    assert not check(labelled_part(tmp_path, labels_offset_zyx=[0, 0, 0]))["cube"].may_be_misplaced
    assert not check(labelled_part(tmp_path, image_box="0:30,0:40,0:50"))["cube"].may_be_misplaced, "all of it"
    placed = write(tmp_path / "placed.zarr", np.uint64, Box.parse("34:64,4:44,10:60"))
    assert not check(labelled_part(tmp_path, labels=placed))["cube"].may_be_misplaced


def test_a_part_of_image_and_labels_is_brought_in(tmp_path):
    box, offset = "30:60,8:48,0:80", [34, 4, 10]
    inside = labelled_part(tmp_path, labels_offset_zyx=offset, image_box=box, segment_box="40:60,8:48,0:80")
    place = check(inside)["cube"]
    assert str(place.image) == box and str(place.labels) == str(place.train_box) == "34:60,8:44,10:60"
    leaving = {"image_box": box, "segment_box": "40:64,8:48,0:80"}
    refuse(labelled_part(tmp_path, labels_offset_zyx=offset, **leaving), "cube.segment_box: 40:64,8:48,0:80")
    refuse(labelled_part(tmp_path, image_box="0:65,0:48,0:80"), "volumes.cube.image_box: 0:65,0:48,0:80")
    refuse(labelled_part(tmp_path, image_box="none"), "volumes.cube.image_box: .*'none'")
    refuse(labelled_part(tmp_path, image_box="30:64,0:48,0:80"), "volumes.cube.train_box: ")  # without labels


@pytest.fixture
def remote(tmp_path):
    """Address of an image of 300 × 48 × 80 voxels on a server."""
    path = tmp_path / "served/raw.zarr"
    write(path, np.uint8, (300, 48, 80))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(path.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/raw.zarr"
        server.shutdown()
        thread.join()


def test_of_a_remote_image_only_what_the_boxes_need_is_brought_in(tmp_path, remote):
    save_model(tmp_path / "model", random_model())
    trained = {**GOOD, "init": str(tmp_path / "model"), "train": UNTRAINED}

    def brought_in(image, **volume):
        cube = {"image": str(image), "segment_box": "100:120,0:48,0:80"} | volume
        run = load_run({**trained, "volumes": {"cube": cube}})
        pipeline = SimpleNamespace(run=run, places=check_sources(run))
        return str(pipeline.places["cube"].image), source(pipeline, "cube", "image").partition(" --box=")[2]

    everything, needed = "0:300,0:48,0:80", "36:184,0:48,0:80"  # 64 voxels around
    assert brought_in(remote) == (needed, needed)
    assert brought_in(remote, segment_box="all") == brought_in(remote, image_box="all") == (everything, "")
    assert brought_in(tmp_path / "served/raw.zarr") == (everything, "")


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


def test_validation_data_are_apart_from_what_another_volume_of_the_image_trains_on(tmp_path):
    for name, dtype in (("raw", np.uint8), ("labels", np.uint64), ("others", np.uint64)):
        write(tmp_path / f"{name}.zarr", dtype, SHAPE)
    trained = {"image": f"{tmp_path}/raw.zarr", "labels": f"{tmp_path}/labels.zarr", "train_box": "0:40,0:48,0:80"}
    validated = {**trained, "image": f"{tmp_path}/./raw.zarr", "labels": f"{tmp_path}/others.zarr", "train_box": "none"}

    def configured(box):
        return {**GOOD, "volumes": {"a": trained, "b": {**validated, "validate_box": box}}}

    assert str(check(configured("40:64,0:48,0:80"))["b"].validate_box) == "40:64,0:48,0:80"
    refuse(configured("39:64,0:48,0:80"), "volumes.b.validate_box: 39:64,0:48,0:80 .*volumes.a")


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


@pytest.mark.parametrize("key", ["init_segmentation", "nuclei"])
@pytest.mark.parametrize(
    ("dtype", "start", "said"),
    [(np.uint64, (31, 0, 0), None), (np.uint64, (32, 0, 0), "32:34,0:5,0:6"), (np.float32, (31, 0, 0), None)],
)
def test_given_segments_and_nuclei_have_to_lie_in_the_segment_box(tmp_path, dtype, start, said, key):
    labels = write(tmp_path / "soma.zarr", dtype, Box.from_shape((2, 5, 6), start), 20)
    config = {**with_phantom(**{key: labels}), "agglomerate": {"enabled": True}}
    if said is None:
        check(config)
    else:
        refuse(config, f"volumes.phantom.{key}: .*{said}")


FILES = {
    "segment.seed_points": ("z,y,x\n1,2,3\n", ["z,y,x\n1,2\n"]),
    "merge.calibration": ("intercept: 1.0\nfeatures: {iou: {mean: 0.5, spread: 0.1, weight: 2.0}}\n", ["["]),
    "volumes.phantom.corrections": (
        "action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9,0,0\n",
        ["action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9999,0,0\n"],
    ),
    "volumes.phantom.skeletons": (
        "1 0 10 10 10 1 -1\n2 0 10 10 50 1 1\n",
        ["1 0 10 10 10 1 -1\n"],
    ),
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
