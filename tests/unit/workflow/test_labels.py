"""Where images and their labels lie, and how much of them is brought in."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import zarr
from PIL import Image

from ffn.cli import main
from ffn.geometry import Box
from ffn.model.store import save_model
from ffn.workflow import sources
from ffn.workflow.arguments import source
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

from ...servers import serving_files
from ...volumes import multiscale
from .runs import GOOD, PHANTOM, SHAPE, UNTRAINED, Wildcards, check, random_model, refuse, write


def test_labels_of_another_part_are_trained_on_but_not_scored(tmp_path):
    image, labels = write(tmp_path / "raw.zarr", np.uint8, SHAPE), write(tmp_path / "l.zarr", np.uint64, (30, 48, 80))
    place = check({**GOOD, "volumes": {"a": {"image": image, "labels": labels, "segment_box": "30:64,0:48,0:80"}}})["a"]
    assert str(place.train_box) == "0:30,0:48,0:80"
    assert not place.is_evaluated and not place.shows_truth
    assert place.voxel_size_zyx_nm == (10, 10, 10)


def write_image(path, dtype, sizes):
    """Write an OME-Zarr image with isotropic mips of these voxel sizes that covers 1280 × 1120 × 1440 nm."""
    group = zarr.create_group(path, zarr_format=3)
    for mip, size in enumerate(sizes):
        array = group.create_array(str(mip), shape=(1280 // size, 1120 // size, 1440 // size), dtype=dtype)
        array[0, 0, 0] = 1  # an array without chunks is refused
    described = multiscale({str(mip): [size] * 3 for mip, size in enumerate(sizes)})
    group.attrs["ome"] = {"version": "0.5", "multiscales": [described]}
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


@pytest.mark.parametrize(("sizes", "choice"), [([10], {"mip": 1}), ([10, 20], {"voxel_size_zyx_nm": [20] * 3})])
@pytest.mark.parametrize("key", ["masks", "init_segmentation"])
def test_what_has_no_voxel_size_is_not_taken_for_voxels_of_a_mip(tmp_path, key, sizes, choice):
    image, path = write_image(tmp_path / "image.zarr", np.uint8, sizes), f"{tmp_path}/given.npy"
    volume = {"image": image, key: [path] if key == "masks" else path, **choice}
    config = {**GOOD, "volumes": {"cube": volume, "phantom": PHANTOM}}
    np.save(path, np.zeros((64, 56, 72), np.uint8))
    for volume["image_box"] in ("0:40,0:50,0:70", "all"):  # as large as the image
        check(config)
    np.save(path, np.zeros((128, 112, 144), np.uint8))
    refuse(config, f"^volumes.cube.{key}: {path} .*mip")


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
    labels = {"link": f"{tmp_path}/link", "glob": f"{tmp_path}/link/*.png"}[kind]
    given = {"image": f"{tmp_path}/stack", "labels": labels, "voxel_size_zyx_nm": [10] * 3}
    refuse(labelled_part(tmp_path, **given), "volumes.cube.labels: is")


def test_labels_that_are_no_objects_in_3d_are_a_warning(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "mask.h5", "w") as file:
        file["mask"] = np.arange(30 * 40 * 50).reshape(30, 40, 50) // 25 % 2 * 255.0
    run = load_run(labelled_part(tmp_path, labels=f"{tmp_path}/mask.h5:mask"))
    with monkeypatch.context() as patch:  # every job checks the sources; only the plan reads voxels
        patch.setattr(sources, "doubts_about_labels", pytest.fail)
        places = check_sources(run)
    warnings = Pipeline(run, places).warnings
    assert any("cube.labels" in warning and "mask?" in warning for warning in warnings)


def test_labels_lie_where_the_configuration_says_or_are_noticed(tmp_path):
    placed = labelled_part(tmp_path, labels_offset_zyx=[34, 4, 10], evaluate_box="40:60,4:44,10:60")
    place = check(placed)["cube"]
    assert place.labels == place.train_box == Box.parse("34:64,4:44,10:60")
    assert check(labelled_part(tmp_path))["cube"].labels == Box.parse("0:30,0:40,0:50")
    for offset in ([35, 4, 10], [0, -1, 0]):
        named = rf"volumes.cube.labels_offset_zyx: \({', '.join(map(str, offset))}\)"
        refuse(labelled_part(tmp_path, labels_offset_zyx=offset), named)
    assert check(labelled_part(tmp_path))["cube"].may_be_misplaced
    assert not check(labelled_part(tmp_path, labels_offset_zyx=[0, 0, 0]))["cube"].may_be_misplaced
    assert not check(labelled_part(tmp_path, image_box="0:30,0:40,0:50"))["cube"].may_be_misplaced, "all of it"
    placed = write(tmp_path / "placed.zarr", np.uint64, Box.parse("34:64,4:44,10:60"))
    assert not check(labelled_part(tmp_path, labels=placed))["cube"].may_be_misplaced
    np.save(tmp_path / "crop.npy", np.zeros((30, 40, 50), np.uint8))
    np.save(tmp_path / "more.npy", np.zeros((40, 40, 60), np.uint8))
    part = ["--box", "0:30,0:40,0:50"]
    for image, box in (("raw.zarr", part), ("crop.npy", []), ("more.npy", part)):
        own = f"{tmp_path}/of-{image}.zarr"
        main(["labels", "--new", f"{tmp_path}/{image}", *box, "--out", own])
        place = check(labelled_part(tmp_path, labels=own))["cube"]
        assert str(place.labels) == "0:30,0:40,0:50" and place.may_be_misplaced == (image != "raw.zarr")


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
    with serving_files(path.parent, []) as address:
        yield f"{address}/raw.zarr"


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
