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

from ffn.config import ModelConfig, SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.workflow.arguments import source
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import calibration_files, check_sources, files_among, segment_files, trained_in
from ffn.workflow.run import load_run

from .runs import GOOD, PHANTOM, SELECTING, SMALL, VALIDATED, changed

UNTRAINED = {"max_steps": 0, "permutable_axes": []}


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
                    "train": UNTRAINED,
                }
            )
        )


def random_model(**changes):
    config = ModelConfig(**{**SMALL, **changes}, image_mean=0, image_stddev=1)
    return Model(config, {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}, {})


def test_initial_weights_of_another_fov_are_refused(tmp_path):
    save_model(tmp_path / "model", random_model(fov_size_zyx=(9, 11, 15)))
    with pytest.raises(ConfigError, match="model.fov_size_zyx: .9, 11, 13. is not that of init .*9, 11, 15"):
        check_sources(load_run({**GOOD, "init": str(tmp_path / "model"), "train": UNTRAINED}))
    check_sources(
        load_run({**GOOD, "init": str(tmp_path / "model")})
    )  # training gives them the FOV of the configuration


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("fov_size_zyx", r".33, 33, 33. by default is not .* Give model.fov_size_zyx: .9, 11, 13. to keep it"),
        ("deltas_zyx", r".8, 8, 8. by default is not .* Give model.deltas_zyx: .2, 3, 3. to keep it"),
    ],
)
def test_fine_tuning_changes_fov_and_deltas_only_if_they_are_given(tmp_path, key, message):
    given = SMALL if key == "fov_size_zyx" else {**SMALL, "fov_size_zyx": (33, 33, 33)}
    save_model(tmp_path / "model", random_model(fov_size_zyx=given["fov_size_zyx"]))
    model = {name: value for name, value in given.items() if name != key}
    boxes = {"subvolumes": {"size_zyx": [80, 80, 80], "overlap_zyx": [40, 40, 40]}}
    with pytest.raises(ConfigError, match=f"model.{key}: {message}"):
        check_sources(load_run({**GOOD, **boxes, "init": str(tmp_path / "model"), "model": model}))


@pytest.mark.parametrize("train", [GOOD["train"], UNTRAINED])
def test_initial_weights_of_another_width_are_refused(tmp_path, train):
    save_model(tmp_path / "model", random_model(features=5))
    init = {**GOOD, "init": str(tmp_path / "model"), "train": train}
    with pytest.raises(ConfigError, match=r"model.features: 4 is not that of init .*model .5., both must be equal"):
        check_sources(load_run(init))
    check_sources(load_run({**init, "model": {key: SMALL[key] for key in ("fov_size_zyx", "deltas_zyx")}}))


def test_a_checkpoint_of_ours_is_checked_like_a_model(tmp_path):
    for fov, path in (([9, 11, 13], tmp_path / "step-00000010"), ([9, 11, 15], tmp_path / "step-00000020")):
        model = {**ModelConfig(**SMALL).model_dump(mode="json"), "fov_size_zyx": fov}
        path.mkdir()
        (path / "manifest.json").write_text(json.dumps({"step": 10, "fingerprint": {"model": model}, "sha256": {}}))
    check_sources(load_run({**GOOD, "init": str(tmp_path / "step-00000010"), "train": UNTRAINED}))
    with pytest.raises(ConfigError, match="model.fov_size_zyx: .9, 11, 13. is not that of init .*20 .*9, 11, 15"):
        check_sources(load_run({**GOOD, "init": str(tmp_path / "step-00000020"), "train": UNTRAINED}))


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


def write_image(path, dtype, sizes):
    """Write an OME-Zarr image with isotropic mips of these voxel sizes that covers 1280 × 1120 × 1440 nm."""
    group = zarr.create_group(path, zarr_format=3)
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    datasets = [
        {"path": str(mip), "coordinateTransformations": [{"type": "scale", "scale": [size] * 3}]}
        for mip, size in enumerate(sizes)
    ]
    for mip, size in enumerate(sizes):
        group.create_array(str(mip), shape=(1280 // size, 1120 // size, 1440 // size), dtype=dtype)
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]}
    return str(path)


@pytest.mark.parametrize("choice", [{"mip": 1}, {"voxel_size_zyx_nm": [20, 20, 20]}])
def test_labels_are_read_at_the_resolution_of_the_image(tmp_path, choice):
    image = write_image(tmp_path / "image.zarr", np.uint8, (10, 20, 40))
    labels = write_image(tmp_path / "labels.zarr", np.uint64, (20, 40))
    volume = {"image": image, "labels": labels, **choice}
    place = check_sources(load_run({**GOOD, "volumes": {"cube": volume}}))["cube"]
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
    assert pipeline.ingested_voxels("image")(SimpleNamespace(volume="cube")) == 8 * place.image.num_voxels
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
    """Place of a volume of 64 × 48 × 80 voxels whose labels, 30 × 40 × 50, do not say where they lie."""
    for name, dtype, shape in (("raw", np.uint8, (64, 48, 80)), ("labels", np.uint64, (30, 40, 50))):
        with create_volume(f"{tmp_path}/{name}.h5:{name}", dtype, Placement(Box.from_shape(shape), (10, 10, 10))):
            pass
    return check_sources(load_run({**GOOD, "volumes": {"cube": {**sources(tmp_path), **volume}}}))["cube"]


def sources(folder):
    return {"image": f"{folder}/raw.h5", "labels": f"{folder}/labels.h5"}


def test_labels_lie_where_the_configuration_says(tmp_path):
    place = labelled_part(tmp_path, labels_offset_zyx=[34, 4, 10], evaluate_box="40:60,4:44,10:60")
    assert place.labels == place.train_box == Box.parse("34:64,4:44,10:60")
    assert labelled_part(tmp_path).labels == Box.parse("0:30,0:40,0:50")


def test_the_metadata_of_a_store_name_it(tmp_path):
    for name, dtype in (("raw", np.uint8), ("labels", np.uint64)):
        with create_volume(f"{tmp_path}/{name}.zarr", dtype, Placement(Box.from_shape((64, 48, 80)), (10, 10, 10))):
            pass
    files = {name: f"{tmp_path}/{file}.zarr/zarr.json" for name, file in (("image", "raw"), ("labels", "labels"))}
    volume = {**files, "init_segmentation": files["labels"], "masks": [f"{files['image']}#values=3"]}
    run = load_run({**GOOD, "volumes": {"cube": volume}})
    pipeline = Pipeline(run, check_sources(run))
    assert pipeline.places["cube"].labels == Box.parse("0:64,0:48,0:80")
    assert source(pipeline, "cube", "image").startswith(f"{tmp_path}/raw.zarr ")
    assert str(run.volumes["cube"].masks[0]) == f"{tmp_path}/raw.zarr#values=3"


def test_labels_between_voxels_lie_where_the_configuration_says(tmp_path):
    group = zarr.create_group(tmp_path / "between.zarr", zarr_format=3)
    group.create_array("s0", data=np.ones((30, 40, 50), np.uint64))
    steps = [{"type": "scale", "scale": [10.0] * 3}, {"type": "translation", "translation": [5.0] * 3}]
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    image = {"axes": axes, "datasets": [{"path": "s0", "coordinateTransformations": steps}]}
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    labels = f"{tmp_path}/between.zarr"
    with pytest.raises(ConfigError, match=r"volumes.cube.labels: .* expected a whole .* or labels_offset_zyx"):
        labelled_part(tmp_path, labels=labels)
    place = labelled_part(tmp_path, labels=labels, labels_offset_zyx=[34, 4, 10], evaluate_box="40:60,4:44,10:60")
    assert place.labels == Box.parse("34:64,4:44,10:60")


@pytest.mark.parametrize(
    ("file", "dtype", "size", "message"),
    [
        ("raw", np.float32, 10, r"volumes.cube.image: .*raw.h5.*: has type float32, expected an image of integers"),
        ("labels", np.float32, 10, r"volumes.cube.labels: .*labels.h5.*: has type float32, expected integer labels"),
        (
            "raw",
            np.uint8,
            8,
            r"volumes.cube.voxel_size_zyx_nm: \(10.0, 10.0, 10.0\) differs from the \(8.0, 8.0, 8.0\)",
        ),
    ],
)
def test_what_ingest_would_refuse_is_refused_before(tmp_path, file, dtype, size, message):
    labelled_part(tmp_path)
    (tmp_path / f"{file}.h5").unlink()
    with create_volume(f"{tmp_path}/{file}.h5:{file}", dtype, Placement(Box.from_shape((64, 48, 80)), (size,) * 3)):
        pass
    volume = {**sources(tmp_path), "voxel_size_zyx_nm": [10, 10, 10]}
    with pytest.raises(ConfigError, match=message):
        check_sources(load_run({**GOOD, "volumes": {"cube": volume}}))


def test_labels_of_a_part_that_do_not_say_which_are_noticed(tmp_path):
    assert labelled_part(tmp_path).may_be_misplaced
    assert not labelled_part(tmp_path, labels_offset_zyx=[0, 0, 0]).may_be_misplaced
    assert not labelled_part(tmp_path, image_box="0:30,0:40,0:50").may_be_misplaced, "they cover all of it"
    with h5py.File(tmp_path / "labels.h5", "r+") as file:
        file["labels"].attrs["offset"] = (34, 4, 10)
    place = check_sources(load_run({**GOOD, "volumes": {"cube": sources(tmp_path)}}))["cube"]
    assert place.labels == Box.parse("34:64,4:44,10:60") and not place.may_be_misplaced


def test_a_part_of_image_and_labels_is_brought_in(tmp_path):
    box = "30:60,8:48,0:80"
    place = labelled_part(tmp_path, labels_offset_zyx=[34, 4, 10], image_box=box, segment_box="40:60,8:48,0:80")
    assert str(place.image) == box and str(place.labels) == str(place.train_box) == "34:60,8:44,10:60"
    with pytest.raises(ConfigError, match="cube.segment_box: 40:64,8:48,0:80"):
        labelled_part(tmp_path, labels_offset_zyx=[34, 4, 10], image_box=box, segment_box="40:64,8:48,0:80")
    with pytest.raises(ConfigError, match="image_box: 0:65,0:48,0:80 leaves the image 0:64,0:48,0:80"):
        labelled_part(tmp_path, image_box="0:65,0:48,0:80")
    with pytest.raises(ConfigError, match="image_box: 30:64,0:48,0:80 holds none of the labels, which cover 0:30"):
        labelled_part(tmp_path, image_box="30:64,0:48,0:80")


@pytest.fixture
def remote(tmp_path):
    """Address of an image of 300 × 48 × 80 voxels on a server."""
    path = tmp_path / "served/raw.zarr"
    with create_volume(str(path), np.uint8, Placement(Box.from_shape((300, 48, 80)), (10, 10, 10))):
        pass
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
        run = load_run(
            {**trained, "volumes": {"cube": {"image": str(image), "segment_box": "100:120,0:48,0:80"} | volume}}
        )
        pipeline = SimpleNamespace(run=run, places=check_sources(run))
        return str(pipeline.places["cube"].image), source(pipeline, "cube", "image").partition(" --box ")[2]

    everything, needed = "0:300,0:48,0:80", "36:184,0:48,0:80"  # 64 voxels around
    assert brought_in(remote) == (needed, needed)
    assert brought_in(remote, segment_box="all") == brought_in(remote, image_box="all") == (everything, "")
    assert brought_in(tmp_path / "served/raw.zarr") == (everything, "")


def test_labels_that_leave_the_image_are_one_line(tmp_path):
    message = r"volumes.cube.labels_offset_zyx: .35, 4, 10. puts the labels at 35:65,4:44,10:60, which leaves the image"
    with pytest.raises(ConfigError, match=message + " 0:64,0:48,0:80"):
        labelled_part(tmp_path, labels_offset_zyx=[35, 4, 10])
    with pytest.raises(ConfigError, match=r"labels_offset_zyx: .0, -1, 0. puts the labels at 0:30,-1:39,0:50"):
        labelled_part(tmp_path, labels_offset_zyx=[0, -1, 0])


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


def test_validation_data_are_apart_from_what_another_volume_of_the_image_trains_on(tmp_path):
    for name, dtype in (("raw", np.uint8), ("labels", np.uint64), ("others", np.uint64)):
        with create_volume(
            f"{tmp_path}/{name}.h5:{name}", dtype, Placement(Box((0, 0, 0), (64, 48, 80)), (10, 10, 10))
        ):
            pass
    trained = {"image": f"{tmp_path}/raw.h5", "labels": f"{tmp_path}/labels.h5", "train_box": "0:40,0:48,0:80"}
    validated = {**trained, "image": f"{tmp_path}/./raw.h5", "labels": f"{tmp_path}/others.h5", "train_box": "none"}

    def check(box, **volume):
        volumes = {"a": {**trained, **volume}, "b": {**validated, "validate_box": box}}
        return check_sources(load_run({**GOOD, "volumes": volumes}))["b"].validate_box

    assert str(check("40:64,0:48,0:80")) == "40:64,0:48,0:80"
    message = (
        "volumes.b.validate_box: 39:64,0:48,0:80 overlaps train_box 0:40,0:48,0:80 of volumes.a, which is of the same"
    )
    with pytest.raises(ConfigError, match=message):
        check("39:64,0:48,0:80")


def fine_tuned(tmp_path, **volumes):
    save_model(tmp_path / "model", random_model())
    return check_sources(load_run({**GOOD, "init": str(tmp_path / "model"), "volumes": volumes}))


def test_fine_tuning_keeps_a_part_of_the_training_box_for_validation(tmp_path):
    places = fine_tuned(
        tmp_path, a=PHANTOM, b={**PHANTOM, "train_box": "0:40,0:48,10:50"}, c={**PHANTOM, "train_box": "none"}
    )
    assert (places["a"].train_box, places["a"].validate_box) == (
        Box.parse("0:64,0:48,0:63"),
        Box.parse("0:64,0:48,63:80"),
    )
    assert (places["b"].train_box, places["b"].validate_box) == (
        Box.parse("0:40,0:36,10:50"),
        Box.parse("0:40,36:48,10:50"),
    )
    assert not places["c"].config.is_validated_on
    given = fine_tuned(tmp_path, a=PHANTOM, b={**VALIDATED})
    assert given["a"].train_box == Box.parse("0:64,0:48,0:80") and not given["a"].config.is_validated_on
    assert not check_sources(load_run(GOOD))["phantom"].config.is_validated_on


def test_labels_without_room_for_a_validation_box_are_one_line(tmp_path):
    small = {**PHANTOM, "train_box": "0:13,0:17,0:20"}
    with pytest.raises(ConfigError, match="volumes.a.validate_box: auto, but train_box 0:13,0:17,0:20 has no room"):
        fine_tuned(tmp_path, a=small)
    assert not fine_tuned(tmp_path, a={**small, "validate_box": "none"})["a"].config.is_validated_on
    assert not fine_tuned(tmp_path, a=small, b=PHANTOM)["a"].config.is_validated_on


def test_a_mask_has_to_be_there_and_to_cover_what_is_segmented(tmp_path):
    mask = f"{tmp_path}/mask.h5:tissue"
    volume = {**PHANTOM, "masks": [{"path": mask}, {"box": "0:9,0:9,0:9"}]}
    run = load_run({**GOOD, "volumes": {"phantom": volume}})
    with pytest.raises(ConfigError, match="volumes.phantom.masks, segment_box: .*mask.h5: no such file"):
        check_sources(run)
    with create_volume(mask, np.uint8, Placement(Box((0, 0, 0), (60, 48, 80)), (10, 10, 10))):
        pass
    said = "phantom.masks, segment_box: .*covers 0:60,0:48,0:80, expected all of 0:64,0:48,0:80"
    with pytest.raises(ConfigError, match=said):
        check_sources(run)
    part = "0:60,0:48,0:80"
    less = {"phantom": {**volume, "train_box": part, "segment_box": part, "evaluate_box": "none"}}
    check_sources(load_run({**GOOD, "volumes": less}))


@pytest.mark.parametrize("key", ["init_segmentation", "nuclei"])
@pytest.mark.parametrize(
    ("dtype", "start", "said"),
    [
        (np.uint64, (31, 0, 0), None),
        (np.uint64, (32, 0, 0), "covers 32:34,0:5,0:6, expected some of segment_box 0:64,0:48,0:80"),
        (np.float32, (0, 0, 0), "has type float32, expected integer labels"),
    ],
)
def test_given_segments_and_nuclei_have_to_lie_in_the_segment_box(tmp_path, dtype, start, said, key):
    spec = f"{tmp_path}/soma.h5:labels"
    with create_volume(spec, dtype, Placement(Box.from_shape((2, 5, 6), start), (20, 20, 20))):
        pass
    run = load_run(changed(volumes={"phantom": {**PHANTOM, key: spec}}, agglomerate={"enabled": True}))
    if said is None:
        check_sources(run)
        return
    with pytest.raises(ConfigError, match=f"volumes.phantom.{key}: .*{said}"):
        check_sources(run)


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


@pytest.mark.parametrize("section", ["merge", "sweep"])
def test_a_calibration_is_read_before_anything_runs(section, tmp_path):
    path = tmp_path / "calibration.yaml"
    run = load_run(changed(agglomerate={"enabled": True}, **{section: {"calibration": str(path)}}))
    with pytest.raises(ConfigError, match=rf"{section}.calibration: .*calibration.yaml: cannot be read"):
        check_sources(run)
    path.write_text("intercept: 1.0\nfeatures: {iou: {mean: 0.5, spread: 0.1, weight: 2.0}}\n")
    check_sources(run)
    assert calibration_files(str(path)) == [str(path)]
    assert calibration_files(None) == calibration_files(f"{tmp_path}/none.yaml") == []


def test_corrections_are_read_before_anything_runs(tmp_path):
    path = tmp_path / "corrections.csv"
    phantom = {"phantom": {**PHANTOM, "corrections": str(path)}}
    with pytest.raises(ConfigError, match=r"volumes.phantom.corrections: .*csv is applied by merge.*Set agglomerate"):
        check_sources(load_run(changed(volumes=phantom)))
    unsegmented = {"phantom": {**phantom["phantom"], "segment_box": "none"}}
    with pytest.raises(ConfigError, match="is applied by merge, which leaves this volume out"):
        check_sources(load_run(changed(volumes=unsegmented, agglomerate={"enabled": True})))
    run = load_run(changed(volumes=phantom, agglomerate={"enabled": True}))
    with pytest.raises(ConfigError, match=r"volumes.phantom.corrections: .*corrections.csv: cannot be read"):
        check_sources(run)
    path.write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9999,0,0\n")
    with pytest.raises(ConfigError, match=r"corrections.csv: join,0,0,0,9999,0,0 leaves segment_box, 0:"):
        check_sources(run)
    path.write_text("action,z_a,y_a,x_a,z_b,y_b,x_b\njoin,0,0,0,9,0,0\n")
    check_sources(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0 10 10\n", r"volumes.phantom.skeletons: .*axon.swc: line 1: '1 0 10 10' is no node of an SWC file"),
        ("1 0 10 10 10 1 -1\n", "volumes.phantom.skeletons: .*axon.swc: has no skeletons"),
        ("1 0 1 1 1 1 -1\n2 0 1 1 1.01 1 1\n", "volumes.phantom.skeletons: .*axon.swc: its edges are 0.01 nm long"),
    ],
)
def test_skeletons_are_looked_at_before_anything_runs(text, message, tmp_path):
    path = tmp_path / "axon.swc"
    run = load_run(changed(volumes={"phantom": {**PHANTOM, "skeletons": str(path)}}))
    path.write_text("1 0 10 10 10 1 -1\n2 0 10 10 50 1 1\n")
    check_sources(run)
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        check_sources(run)


def test_files_that_segmentation_reads_are_inputs_of_the_rule(tmp_path):
    points, mask = tmp_path / "seeds.csv", tmp_path / "mask.h5"
    points.touch()
    mask.touch()
    assert segment_files(SegmentConfig(seed_policy="points", seed_points=str(points))) == [str(points)]
    assert segment_files(SegmentConfig(seed_policy="points", seed_points="1,2,3")) == []
    assert files_among([f"{mask}:tissue", str(tmp_path), None, "precomputed://https://example.org/mask"]) == [str(mask)]
    finished = tmp_path / "coarse.zarr/zarr.json"
    finished.parent.mkdir()
    finished.touch()
    assert files_among([f"{tmp_path}/coarse.zarr", f"{tmp_path}/coarse.zarr/0"]) == [str(finished)] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoints": 4}, r"select.checkpoints: 4, but training leaves 3 .* Keep more, or choose among fewer"),
        ({"box": None}, "select: box: None with checkpoints: 2"),
        ({"box": "all"}, "select: box: all with"),
        ({"volume": "other"}, "select.volume: 'other' is none of"),
        ({"box": "30:45,0:48,0:80"}, "select.box: .* overlaps volumes.phantom.evaluate_box 44:64"),
        ({"box": "30:44,0:48,0:81"}, "select.box: .* leaves the labelled part"),
    ],
)
def test_a_bad_selection_stops_before_anything_runs(change, message):
    check_sources(load_run(SELECTING))
    with pytest.raises(ConfigError, match=message):
        check_sources(load_run({**SELECTING, "select": {**SELECTING["select"], **change}}))


def test_a_mask_has_to_cover_the_box_that_checkpoints_are_chosen_on(tmp_path):
    mask = f"{tmp_path}/mask.h5:tissue"
    with create_volume(mask, np.uint8, Placement(Box((0, 0, 0), (40, 48, 80)), (10, 10, 10))):
        pass
    place = {"train_box": "0:30,0:48,0:80", "segment_box": "none", "evaluate_box": "none"}
    volumes = {name: {**volume, **place} for name, volume in SELECTING["volumes"].items()}
    volumes["phantom"]["masks"] = [{"path": mask}]
    with pytest.raises(
        ConfigError,
        match="phantom.masks, select.box and what FOVs .*covers 0:40,.* expected all of 26:48,",
    ):
        check_sources(load_run({**SELECTING, "volumes": volumes}))


def test_a_selection_without_checkpoints_says_what_to_set():
    train = {key: value for key, value in SELECTING["train"].items() if key != "checkpoint_steps"}
    with pytest.raises(ConfigError, match=r"training leaves 1 .* Set train.checkpoint_steps$"):
        load_run({**SELECTING, "train": train})


def test_a_stack_thinner_than_the_fov_can_be_segmented_but_not_trained_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model("model", random_model())
    np.save("thin.npy", np.zeros((3, 48, 80), np.uint8))
    thin = {"image": "thin.npy", "voxel_size_zyx_nm": [10, 10, 10]}

    def places(**segment):
        return check_sources(
            load_run({**GOOD, "volumes": {"thin": thin}, "init": "model", "train": UNTRAINED, **segment})
        )

    assert places()["thin"].segment_box.shape == (3, 48, 80)
    with pytest.raises(ConfigError, match="larger than volumes.thin.segment_box"):
        places(segment={"mirror": False})


def test_checkpoints_can_be_chosen_on_a_stack_thinner_than_the_fov(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, dtype in (("image", np.uint8), ("labels", np.uint64)):
        np.save(f"{name}.npy", np.zeros((3, 48, 80), dtype))
    boxes = dict.fromkeys(["train_box", "validate_box", "segment_box", "evaluate_box"], "none")
    thin = {"image": "image.npy", "labels": "labels.npy", "voxel_size_zyx_nm": [10, 10, 10], **boxes}
    selecting = {
        **SELECTING,
        "volumes": {**SELECTING["volumes"], "thin": thin},
        "select": {**SELECTING["select"], "volume": "thin", "box": "0:3,0:48,0:80"},
    }
    run = load_run(selecting)
    canvas = Box.from_shape((3, 48, 80)).grow(run.model.fov_radius_zyx)
    assert Pipeline(run, check_sources(run)).selection_voxels == canvas.num_voxels
    with pytest.raises(ConfigError, match=r"select.box: .* image of shape \(3, 48, 80\), which holds no FOV"):
        check_sources(load_run({**selecting, "segment": {"mirror": False}}))


def test_candidates_segment_what_is_around_the_box_too_as_far_as_there_is_image():
    run = load_run({**SELECTING, "select": {**SELECTING["select"], "box": "30:33,0:48,20:24"}})
    (z, y, x), found = run.model.fov_radius_zyx, Pipeline(run, check_sources(run)).selection_box
    assert found == Box((30 - z, 0, 20 - x), (33 + z, 48, 24 + x)) and y > 0
    run = load_run({**SELECTING, "select": {**SELECTING["select"], "box": "30:44,0:48,0:3"}})
    assert Pipeline(run, check_sources(run)).selection_box.shape[2] == run.model.fov_size_zyx[2] > 3 + x


def test_a_validation_box_that_is_trained_on_is_noticed():
    places = check_sources(load_run(SELECTING))
    assert trained_in(places, "phantom", Box.parse("30:44,0:48,0:80")) == []
    assert trained_in(places, "phantom", Box.parse("29:44,0:48,0:80")) == ["phantom"]
