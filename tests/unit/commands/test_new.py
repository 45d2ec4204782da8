"""`ffn new` writes a configuration that runs as it is, whatever the format of image and labels."""

import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
import yaml
import zarr

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.workflow.first_run import FIRST_MINUTES, first_run
from ffn.workflow.needs import flooding_here
from ffn.workflow.pipeline import Pipeline
from ffn.workflow.places import open_run
from ffn.workflow.run import VolumeConfig
from ffn.workflow.sources import find_image, find_labels

from ...servers import serving_files
from ...volumes import multiscale
from ..io.foreign.test_chunked import create_store

SHAPE = (48, 80, 120)
SIZE = (20.0, 8.0, 8.0)
LABELLED = Box((0, 8, 16), (48, 72, 120))  # the rest is 0
GIVEN = ["--voxel-size", "20", "8", "8"]


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(1).integers(60, 190, SHAPE).astype(np.uint8)


@pytest.fixture(scope="module")
def labels():
    _, y, x = np.indices(SHAPE)
    ids = np.zeros(SHAPE, np.uint32)
    ids[LABELLED.slices()] = (1 + y // 40 + 4 * (x // 40))[LABELLED.slices()]
    return ids


def tiffs(folder, image, labels):
    (folder / "slices").mkdir()
    for z, section in enumerate(image):
        tifffile.imwrite(folder / f"slices/z{z}.tif", section)
    tifffile.imwrite(folder / "labels.tif", labels, photometric="minisblack")
    return [f"{folder}/slices", "--labels", f"{folder}/labels.tif", *GIVEN]


def hdf5_pair(folder, image, labels):
    for name, voxels in (("raw", image), ("labels", labels)):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file[name] = voxels
    return [f"{folder}/raw.h5", "--labels", f"{folder}/labels.h5:labels", *GIVEN]


def cremi(folder, image, labels):
    with h5py.File(folder / "sample.hdf", "w") as file:
        file["volumes/raw"] = image
        file["volumes/labels/neuron_ids"] = labels[LABELLED.slices()].astype(np.uint64)
        file["volumes/labels/clefts"] = np.full(SHAPE, 2**64 - 1, np.uint64)
        for dataset in (file["volumes/raw"], file["volumes/labels/neuron_ids"]):
            dataset.attrs["resolution"] = SIZE
        file["volumes/labels/neuron_ids"].attrs["offset"] = np.multiply(LABELLED.start, SIZE)
    return [f"{folder}/sample.hdf"]


def ome_zarr(folder, image, labels):
    root = zarr.open_group(folder / "image.zarr", mode="w", zarr_format=2)
    for path, voxels in (("", image), ("labels/neurons", labels)):
        group = root.require_group(path) if path else root
        group.create_array("0", data=voxels, chunks=(16, 40, 40))
        group.attrs["multiscales"] = [{"version": "0.4", **multiscale({"0": SIZE})}]
    return [f"{folder}/image.zarr", "--labels", f"{folder}/image.zarr/labels/neurons"]


def precomputed(folder, image, labels):
    scale = {"size": SHAPE[::-1], "encoding": "raw", "chunk_size": [40, 40, 16], "resolution": SIZE[::-1]}
    for name, kind, voxels in (("raw", "image", image), ("ids", "segmentation", labels)):
        volume = {"type": kind, "data_type": str(voxels.dtype), "num_channels": 1}
        metadata = {"multiscale_metadata": volume, "scale_metadata": scale}
        create_store(folder / name, "neuroglancer_precomputed", None, voxels.T[..., None], **metadata)
    return ["precomputed://{url}/raw", "--labels", "precomputed://{url}/ids"]


def alone(folder, image, labels):
    np.save(folder / "raw.npy", image)
    return [f"{folder}/raw.npy", *GIVEN]


@pytest.fixture
def url(tmp_path):
    with serving_files(tmp_path, []) as address:
        yield address


def new(words, out):
    """Return the configuration that is written, and its volume in voxels."""
    assert main(["new", str(out), "--image", *words]) == 0
    values = yaml.safe_load(out.read_text())
    run, places, _ = open_run(values)
    return run, places[out.stem]


@pytest.mark.parametrize("make", [tiffs, hdf5_pair, cremi, ome_zarr, precomputed])
def test_labels_are_split_into_boxes_that_a_run_takes(make, tmp_path, url, image, labels):
    words = [word.format(url=url) for word in make(tmp_path, image, labels)]
    run, place = new(words, tmp_path / "mine.yaml")
    assert place.voxel_size_zyx_nm == SIZE and run.train.max_steps
    boxes = [place.train_box, place.validate_box, place.evaluate_box]
    hull = Box.from_shape(SHAPE) if make is precomputed else LABELLED  # nothing is looked for on a server
    assert all(hull.contains(box) and not box.is_empty for box in boxes)
    assert all(a.intersect(b).is_empty for a, b in zip(boxes, boxes[1:], strict=False))
    assert place.segment_box.contains(boxes[-1]) and place.segment_box.has_room_for((19, 49, 49)), "for ffn round"
    assert len((tmp_path / "mine.yaml").read_text().splitlines()) <= 25


def test_a_home_folder_and_the_only_dataset_are_found(tmp_path, image, labels, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    hdf5_pair(tmp_path, image, labels)
    run, _ = new(["~/raw.h5", *GIVEN], tmp_path / "mine.yaml")
    assert run.volumes["mine"].image == f"{tmp_path}/raw.h5:raw"


def test_an_image_alone_is_segmented_with_the_weights_that_there_are(tmp_path, image, labels):
    folder = tmp_path / " ".join(30 * ["long"])  # a line is not broken at a space
    folder.mkdir()
    run, place = new(alone(folder, image, labels), tmp_path / "2026-11-28.yaml")  # not a date in the configuration
    assert run.init and Path(run.affinities.network).parent == Path(run.init) and run.train.max_steps == 0
    assert place.image.contains(place.segment_box)


def test_a_first_flood_takes_minutes_with_the_overlaps_of_subvolumes(tmp_path):
    np.save(tmp_path / "raw.npy", np.random.default_rng(1).integers(60, 190, (80, 512, 512)).astype(np.uint8))
    written = first_run("big", {"image": f"{tmp_path}/raw.npy", "voxel_size_zyx_nm": (30, 12, 12)})
    pipeline = Pipeline(*open_run(yaml.safe_load(written))[:2])
    flooded = pipeline.jobs.boxes("segment", "big").num_voxels
    assert flooding_here(pipeline.models.costed.flooding_model, flooded) <= FIRST_MINUTES
    finer = first_run("finer", {"image": f"{tmp_path}/raw.npy", "voxel_size_zyx_nm": (30, 6, 6)})
    assert "mip" not in written and yaml.safe_load(finer)["volumes"]["finer"]["mip"] == 1  # 12 nm, which weights know


@pytest.mark.parametrize(("z0", "width", "trained_on"), [(0, 52, "0:22,8:66,16:68"), (0, 34, "none"), (21, 52, "none")])
def test_small_labels_are_all_trained_on_or_none(z0, width, trained_on, tmp_path, image, labels, monkeypatch, capsys):
    monkeypatch.setattr("ffn.workflow.first_run.SAMPLED_SECTIONS", 5)  # between which they end, or lie
    z, y, x = np.indices(SHAPE)
    small = np.where((z0 <= z) & (z < 22) & (y < 66) & (x < 16 + width), labels, 0)
    words = tiffs(tmp_path, image, small)
    assert main(["new", f"{tmp_path}/other.yaml", "--image", *words, "--init", "nowhere"]) == 2
    assert ("axis" in capsys.readouterr().err) == (trained_on == "none"), "what the labels lack, too"
    run, place = new(words, tmp_path / "mine.yaml")
    assert place.config.train_box == trained_on
    assert bool(run.train.max_steps) == (not place.is_evaluated)
    assert ("axis" in (tmp_path / "mine.yaml").read_text()) == (not run.train.max_steps), "what the labels lack"
    assert place.segment_box.has_room_for((13, 33, 33)), "the FOV"


def test_hours_decide_how_long_training_takes(tmp_path, image, labels):
    words = tiffs(tmp_path, image, labels)
    steps = [new([*words, "--hours", hours], tmp_path / f"h{hours}.yaml")[0].train.max_steps for hours in "013"]
    assert steps[2] == pytest.approx(3 * steps[1], rel=0.01) and steps[0] == 0


def test_weights_that_fit_bring_their_affinities(tmp_path, image, labels):
    run, place = new([*tiffs(tmp_path, image, labels)[:-3], "30", "12", "12"], tmp_path / "mine.yaml")
    assert run.train.max_steps and run.affinities.max_steps and Path(run.affinities.network).parent == Path(run.init)
    assert place.config.clahe_tile == 128, "as the weights were trained"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda words: words[:-4], "--voxel-size"),
        (lambda words: ["nowhere.npy", *GIVEN], "nowhere.npy"),
        (lambda words: [*words[:-1], "-8"], "--voxel-size"),
        (lambda words: [*words, "--labels", ""], "--labels"),
    ],
)
def test_what_is_missing_is_asked_for(change, named, tmp_path, image, labels, capsys):
    words = alone(tmp_path, image, labels)
    assert main(["new", str(tmp_path / "mine.yaml"), "--image", *change(words)]) == 2
    assert named in capsys.readouterr().err and not (tmp_path / "mine.yaml").exists()


def test_labels_may_be_painted_before_the_voxel_size_is_known(tmp_path, image, labels):
    path, *size = alone(tmp_path, image, labels)
    assert main(["labels", "--new", path, "--out", f"{tmp_path}/paint.zarr"]) == 0
    zarr.open_array(f"{tmp_path}/paint.zarr/0", mode="r+")[:] = labels
    _, place = new([path, "--labels", f"{tmp_path}/paint.zarr", *size], tmp_path / "mine.yaml")
    assert place.train_box.intersect(LABELLED) == place.train_box
    assert main(["ingest", f"{tmp_path}/paint.zarr", *size, "--out", f"{tmp_path}/labels.zarr"]) == 0
    with open_volume(f"{tmp_path}/labels.zarr") as made:
        assert made.voxel_size_zyx_nm == SIZE


@pytest.mark.parametrize(("size", "mip"), [((20.0, 20.0, 20.0), None), (SIZE, 1)])
def test_labels_painted_before_the_voxel_size_is_known_have_the_voxels_of_the_image(tmp_path, image, size, mip):
    """Neither are they taken for finer than an image of twice the 10 nm that stand for none, nor for the mip made."""
    np.save(tmp_path / "raw.npy", image)
    assert main(["labels", "--new", f"{tmp_path}/raw.npy", "--out", f"{tmp_path}/paint.zarr"]) == 0
    given = {"image": f"{tmp_path}/raw.npy", "labels": f"{tmp_path}/paint.zarr"}
    volume = VolumeConfig(**given, voxel_size_zyx_nm=size, mip=mip)
    found = find_image("cube", volume)
    assert find_labels("cube", volume, found) == found


def test_the_command_that_is_printed_can_be_copied(tmp_path, image, labels, capsys):
    out = str(tmp_path / "my first.yaml")
    assert main(["new", out, "--image", *alone(tmp_path, image, labels)]) == 0
    assert shlex.split(capsys.readouterr().out)[-3:] == ["ffn", "run", out]


def test_a_glob_without_quotes_is_answered_in_one_short_line(tmp_path, image, labels, capsys):
    tiffs(tmp_path, image, labels)
    with pytest.raises(SystemExit, match="2"):
        main(["new", str(tmp_path / "mine.yaml"), "--image", *sorted(map(str, tmp_path.glob("slices/*.tif")))])
    found = capsys.readouterr().err
    assert "slices/z1.tif" in found and " 46 " in found and "z2.tif" not in found
    with pytest.raises(SystemExit, match="2"):
        main(["queue", "results/mine", str(tmp_path / "labels.tif")])
    assert "labels.tif" in (found := capsys.readouterr().err) and "*" not in found


def test_a_configuration_is_not_overwritten(tmp_path, image, labels):
    (tmp_path / "mine.yaml").write_text("run: mine\n")
    assert main(["new", str(tmp_path / "mine.yaml"), "--image", *alone(tmp_path, image, labels)]) == 2
    assert (tmp_path / "mine.yaml").read_text() == "run: mine\n"
