"""Inputs are copied to node-local scratch, but nothing depends on the copies."""

import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
import zarr

from ffn.geometry import Box
from ffn.io import staging
from ffn.io.open import open_volume
from ffn.io.staging import stage_specs, staged_spec
from ffn.io.volume import Placement

from ...volumes import create_volumes, write_volume


@pytest.fixture
def volume(tmp_path):
    """Spec of a volume of 3 × 5 × 7 voxels."""
    voxels = np.arange(105, dtype=np.uint8).reshape(3, 5, 7)
    placement = Placement(Box.from_shape(voxels.shape, (1, 2, 3)))
    return write_volume(f"{tmp_path}/shared/raw.h5:raw", voxels, placement)


@pytest.fixture
def records(tmp_path):
    """A folder with an index and two shards."""
    folder = tmp_path / "shared/records"
    folder.mkdir(parents=True)
    for name in ("index.json", "a-0.tfrecord", "a-1.tfrecord"):
        (folder / name).write_text(name * 100)
    return folder


def voxels_of(spec):
    with open_volume(spec) as volume:
        return volume.box, volume.read()


def copies(scratch):
    return sorted(path for path in scratch.rglob("*.h5") if "tmp" not in path.name)


def test_a_volume_is_staged_with_box_and_voxels_by_one_process(volume, tmp_path):
    stage_specs([volume], str(tmp_path / "scratch"))
    staged = staged_spec(volume, str(tmp_path / "scratch"))
    assert staged.startswith(str(tmp_path / "scratch")) and staged.endswith(":raw")
    (box, voxels), (expected_box, expected) = voxels_of(staged), voxels_of(volume)
    assert box == expected_box
    np.testing.assert_array_equal(voxels, expected)
    scratch = str(tmp_path / "together")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(stage_specs, [[volume]] * 3, [scratch] * 3))
    assert len(copies(tmp_path / "together")) == 1


def test_a_copy_is_used_until_the_original_changes(volume, tmp_path):
    scratch = tmp_path / "scratch"
    stage_specs([volume], str(scratch))
    (copy,) = copies(scratch)
    made = copy.stat().st_ino
    stage_specs([volume], str(scratch))
    assert [path.stat().st_ino for path in copies(scratch)] == [made]

    os.utime(volume.removesuffix(":raw"), ns=(5, 5))
    assert staged_spec(volume, str(scratch)) == volume  # the copy is outdated
    stage_specs([volume], str(scratch))
    (newer,) = copies(scratch)  # the outdated copy is gone
    assert newer.stat().st_ino != made and staged_spec(volume, str(scratch)) == f"{newer}:raw"


@pytest.mark.parametrize("folder", ["$NO_SUCH_VARIABLE/x", "/proc/no/such/place"])
def test_without_scratch_the_original_is_used(folder, volume, caplog):
    with caplog.at_level(logging.WARNING):
        stage_specs([volume], folder)
    assert "--stage-to" in caplog.text
    assert staged_spec(volume, folder) == volume


def test_on_a_full_disk_the_original_is_used(volume, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(staging, "MIN_FREE_BYTES", shutil.disk_usage(tmp_path).total)
    stage_specs([volume], str(tmp_path / "scratch"))
    assert "MiB free" in caplog.text
    assert staged_spec(volume, str(tmp_path / "scratch")) == volume


def ome_group(path):
    """Write a group of another program with two mips, 10 and 20 nm, at voxels 4, 6, 8 of the finer."""
    transforms = [
        [{"type": "scale", "scale": [n] * 3}, {"type": "translation", "translation": [40, 60, 80]}] for n in (10, 20)
    ]
    datasets = [{"path": f"s{k}", "coordinateTransformations": each} for k, each in enumerate(transforms)]
    axes = [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"]
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    for dataset in datasets:
        group.create_array(dataset["path"], data=np.arange(24, dtype=np.uint8).reshape(2, 3, 4), chunks=(2, 2, 2))


def n5_group(path):
    """Write what `ome_group` writes, as N5."""
    for mip in range(2):
        n5 = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/s{mip}/"}}
        ts.open(n5, create=True, dtype=ts.uint8, shape=(4, 3, 2)).result()[...] = np.arange(24, dtype=np.uint8).reshape(
            4, 3, 2
        )
    units = {"pixelResolution": {"dimensions": [10, 10, 10], "unit": "nm"}, "downsamplingFactors": [1, 1, 1]}
    (path / "attributes.json").write_text(json.dumps(units | {"offset": [80, 60, 40]}))
    coarse = json.loads((path / "s1/attributes.json").read_text()) | {"downsamplingFactors": [2, 2, 2]}
    (path / "s1/attributes.json").write_text(json.dumps(coarse))


def our_store(path):
    placement = Placement(Box.from_shape((2, 3, 4), (4, 6, 8)), (10.0, 10.0, 10.0))
    with create_volumes(path, {"0": np.uint8, "edges": np.uint8}, placement) as writers:
        for writer in writers.values():
            writer.write(writer.box, np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    "write, specs",
    [
        (ome_group, ("a.zarr", "./a.zarr", "a.zarr/s0", "a.zarr/s1/", "../run/a.zarr/s1")),
        (n5_group, ("a.n5", "a.n5/s0", "./a.n5/s1")),
        (our_store, ("./a.zarr", "a.zarr/0", "a.zarr/edges", "a.zarr//edges/0")),
    ],
)
def test_what_lies_in_a_group_keeps_its_place(write, specs, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    write(Path(specs[0]))
    scratch = str(tmp_path / "scratch")
    for spec in specs:
        stage_specs([spec], scratch)
        staged = staged_spec(spec, scratch)
        assert staged.startswith(scratch)
        with open_volume(spec) as source, open_volume(staged) as copy:
            assert (copy.box, copy.voxel_size_zyx_nm) == (source.box, source.voxel_size_zyx_nm)
            np.testing.assert_array_equal(copy.read(), source.read())
        shutil.rmtree(scratch)


def test_a_folder_is_staged_whole_with_what_lies_behind_links(records, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "scratch"))
    (tmp_path / "disk/more").mkdir(parents=True)
    (tmp_path / "disk/more/b").write_text("b")
    (records / "link").symlink_to(tmp_path / "disk/more")
    (records / "gone").symlink_to(tmp_path / "disk/none")
    stage_specs([str(records)], "$NODE_DISK")
    staged = Path(staged_spec(str(records), "$NODE_DISK"))
    assert staged != records and (staged / "link/b").read_text() == "b"
    for name in ("index.json", "a-0.tfrecord", "a-1.tfrecord"):
        assert (staged / name).read_text() == (records / name).read_text()


def test_a_folder_of_another_user_is_neither_used_nor_written_to(volume, tmp_path, monkeypatch):
    """Every user of the node can write to ``/tmp``, and knows the name of our folder."""
    stage_specs([volume], str(tmp_path))
    (own,) = tmp_path.glob("ffn-copies-*")
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert staged_spec(volume, str(tmp_path)) == volume
    own.chmod(0o700)
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    assert staged_spec(volume, str(tmp_path)) == volume
    own.unlink()
    (tmp_path / "elsewhere").rename(own)
    stranger = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: stranger + 1)
    own.rename(tmp_path / f"ffn-copies-{stranger + 1}")
    before = sorted(tmp_path.rglob("*"))
    stage_specs([volume], str(tmp_path))
    assert staged_spec(volume, str(tmp_path)) == volume
    assert sorted(tmp_path.rglob("*")) == before
