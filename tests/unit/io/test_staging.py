"""Inputs are copied to node-local scratch, but nothing depends on the copies."""

import logging
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io import staging
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.staging import stage_specs, staged_spec
from ffn.io.volume import Placement


@pytest.fixture
def volume(tmp_path):
    """Spec of a volume of 3 × 5 × 7 voxels."""
    spec = f"{tmp_path}/shared/raw.h5:raw"
    voxels = np.arange(105, dtype=np.uint8).reshape(3, 5, 7)
    with create_volume(spec, np.uint8, Placement(Box.from_shape(voxels.shape, (1, 2, 3)))) as writer:
        writer.write(writer.box, voxels)
    return spec


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


def test_a_staged_volume_has_the_same_box_and_voxels(volume, tmp_path):
    stage_specs([volume], str(tmp_path / "scratch"))
    staged = staged_spec(volume, str(tmp_path / "scratch"))
    assert staged.startswith(str(tmp_path / "scratch")) and staged.endswith(":raw")
    (box, voxels), (expected_box, expected) = voxels_of(staged), voxels_of(volume)
    assert box == expected_box
    np.testing.assert_array_equal(voxels, expected)


def test_a_folder_is_staged_whole(records, tmp_path, monkeypatch):
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "scratch"))
    stage_specs([str(records)], "$NODE_DISK")
    staged = staged_spec(str(records), "$NODE_DISK")
    assert staged != str(records)
    assert {path.name: path.read_text() for path in Path(staged).iterdir()} == {
        path.name: path.read_text() for path in records.iterdir()
    }


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


def test_a_copy_that_differs_is_not_used(volume, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(staging, "_checksum", lambda path: "other")
    stage_specs([volume], str(tmp_path / "scratch"))
    assert "differs" in caplog.text
    assert staged_spec(volume, str(tmp_path / "scratch")) == volume
    assert copies(tmp_path / "scratch") == []


def test_urls_and_missing_files_are_not_staged(tmp_path):
    for spec in ("precomputed://https://somewhere/x", f"{tmp_path}/none.h5:raw"):
        stage_specs([spec], str(tmp_path / "scratch"))
        assert staged_spec(spec, str(tmp_path / "scratch")) == spec


def test_processes_of_one_node_make_one_copy(volume, tmp_path):
    scratch = str(tmp_path / "scratch")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=stage_specs, args=([volume], scratch)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(copies(tmp_path / "scratch")) == 1
