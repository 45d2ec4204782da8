"""Images that stay where they are: the same voxels and places as a copy, and nothing else on disk."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from ffn.cli import main
from ffn.errors import ExportError, VolumeError
from ffn.geometry import Box
from ffn.io.config import IngestConfig
from ffn.io.ingest import can_stay
from ffn.io.open import open_volume, voxel_sizes
from ffn.viewing.viewer import stores_state

from ...volumes import multiscale

SHAPE = (20, 30, 40)
IMAGE = np.random.default_rng(3).integers(0, 255, SHAPE).astype(np.uint8)
BOX = Box((7, 12, 20), (17, 35, 52))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with an image of two mips in ``source.zarr``, which another program wrote."""
    monkeypatch.chdir(tmp_path)
    group = zarr.open_group("source.zarr", mode="w", zarr_format=3)
    for path, voxels in (("s0", IMAGE), ("s1", IMAGE[::2, ::2, ::2])):
        group.create_array(path, shape=voxels.shape, dtype=voxels.dtype, chunks=(8, 8, 8))[:] = voxels
    described = multiscale({"s0": (30.0, 8.0, 8.0), "s1": (60.0, 16.0, 16.0)})
    group.attrs["ome"] = {"version": "0.5", "multiscales": [described]}
    return tmp_path


def ingest(out, *options, source="source.zarr"):
    assert main(["ingest", source, "--out", out, *map(str, options)]) == 0


def content(spec, box=None):
    with open_volume(spec) as volume:
        return volume.box, volume.dtype, volume.voxel_size_zyx_nm, volume.read(box).tolist()


@pytest.mark.parametrize(
    "options", [(), ("--box", BOX, "--offset", 5, 6, 12), ("--mip", 1)], ids=["whole", "box and offset", "mip"]
)
def test_it_reads_as_a_copy_does(folder, options, monkeypatch):
    ingest("raw.zarr", *options)
    ingest("copy.zarr", *options, "--copy-image", "always")
    assert [file.name for file in (folder / "raw.zarr").rglob("*")] == ["zarr.json"]
    monkeypatch.chdir("/")  # a relative source stays the same
    raw, copy = f"{folder}/raw.zarr", f"{folder}/copy.zarr"
    assert content(raw) == content(copy)
    with open_volume(raw) as volume:
        part = Box(volume.box.start, tuple(n - 3 for n in volume.box.stop))
        assert volume.provenance["stage"] == "ingest"
    assert content(raw, part)[-1] == content(copy, part)[-1]


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_relative_source_moves_with_the_project(folder, monkeypatch, is_relative):
    (folder / "project" / "run").mkdir(parents=True)
    (folder / "source.zarr").rename("project/source.zarr")
    monkeypatch.chdir("project")
    ingest("run/raw.zarr", source="source.zarr" if is_relative else f"{folder}/project/source.zarr")
    before = content("run/raw.zarr")
    monkeypatch.chdir("/")
    (folder / "project").rename(folder / "archive")
    if is_relative:
        assert content(f"{folder}/archive/run/raw.zarr") == before
    else:
        with pytest.raises(VolumeError, match="project/source.zarr"):
            content(f"{folder}/archive/run/raw.zarr")


def test_references_lack_no_voxel_size_but_voxels(folder):
    zarr.create_array("bare.zarr", shape=SHAPE, dtype="u1", chunks=(8, 8, 8))[:] = IMAGE
    ingest("raw.zarr", "--voxel-size", 30, 8, 8, source="bare.zarr")
    assert voxel_sizes("raw.zarr") == [(30.0, 8.0, 8.0)]
    ingest("raw.zarr")
    with pytest.raises(ExportError, match="refers to an"):
        stores_state(["raw.zarr"])


@pytest.mark.parametrize(
    ("chunk", "stays"), [((64, 64, 64), True), ((256, 256, 256), True), ((1, 512, 512), True), ((1, 1024, 1024), False)]
)
def test_an_image_stays_if_a_small_block_touches_few_voxels(chunk, stays):
    volume = SimpleNamespace(folder="/data", chunk_zyx=chunk, dtype=np.dtype(np.uint8))
    assert can_stay(volume, IngestConfig()) == stays
    for change in ({"copy_image": "always"}, {"clahe_tile": 64}, {"level_sections": "always"}):
        assert not can_stay(volume, IngestConfig(**change))


def test_labels_and_what_is_equalised_or_signed_are_copied(folder):
    ingest("equalised.zarr", "--clahe-tile", 16)
    zarr.create_array("labels.zarr", data=IMAGE.astype(np.uint64), chunks=(8, 8, 8))
    ingest("truth.zarr", "--voxel-size", 30, 8, 8, source="labels.zarr")
    zarr.create_array("signed.zarr", data=(IMAGE ^ 128).view(np.int8), chunks=(8, 8, 8))
    ingest("shifted.zarr", "--voxel-size", 30, 8, 8, source="signed.zarr")
    assert all((folder / name / "0").is_dir() for name in ("equalised.zarr", "truth.zarr", "shifted.zarr"))
    assert content("shifted.zarr") == content("source.zarr")


def test_copies_replace_references_and_jobs_leave_one(folder):
    """A run that has a copy keeps it, or an update would repeat everything."""
    for options in ((), ("--copy-image", "always"), ()):
        before = (folder / "raw.zarr/0").is_dir()
        ingest("raw.zarr", *options)
        assert (folder / "raw.zarr/0").is_dir() == (before or bool(options))
        assert content("raw.zarr")[-1] == IMAGE.tolist()
    for job in ("1-of-2", "2-of-2"):
        ingest("jobs.zarr", "--job", job, "--job-record", f"{job}.json")
        assert (folder / f"{job}.json").exists() and not (folder / "jobs.zarr").exists()
    ingest("jobs.zarr")
    assert content("jobs.zarr")[-1] == IMAGE.tolist()


def test_a_source_that_is_gone_or_changed_its_shape_is_one_line(folder):
    ingest("raw.zarr")
    metadata = folder / "source.zarr/s0/zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": [20, 30, 39]}))
    with pytest.raises(VolumeError, match=r"raw\.zarr: .*source\.zarr.*Delete raw\.zarr"):
        content("raw.zarr")
    (folder / "source.zarr").rename(folder / "elsewhere.zarr")
    with pytest.raises(VolumeError, match=r"raw\.zarr: .*opened: .*source\.zarr"):
        content("raw.zarr")
