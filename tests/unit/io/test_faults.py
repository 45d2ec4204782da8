"""A full disk, or one that takes no files for another reason: one line that names it, and nothing left half-written."""

import errno
import subprocess

import h5py
import numpy as np
import pytest

from ffn.errors import UnwritableError, VolumeError
from ffn.geometry import Box
from ffn.io import atomic, hdf5, store
from ffn.io.atomic import full_disk, line_of, named
from ffn.io.volume import Placement
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources

NOISE = np.random.default_rng(0).integers(1, 2**62, (32, 64, 64), np.uint64)
PLACE = Placement(Box.from_shape(NOISE.shape), (8.0, 8.0, 8.0), {})


@pytest.fixture
def full(tmp_path):
    """A disk of 64 KB."""
    folder = tmp_path / "full"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", folder], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def rows(path):
    with hdf5.create_file(path) as file:
        table = hdf5.create_rows(file, "0", 3, np.int32)
        hdf5.append_rows(table, NOISE.reshape(-1)[:90_000].astype(np.int32).reshape(-1, 3))


def volume(path):
    with hdf5.create_volume(str(path), "labels", np.uint64, PLACE) as writer:
        writer.write(PLACE.box, NOISE)


def voxels(path):
    with store.create_volume(str(path), np.uint64, PLACE) as writer:
        writer.write(PLACE.box, NOISE)


def shown(path):
    source = path.parents[1] / "seg.h5"
    volume(source)
    export(Sources(segmentation=f"{source}:labels"), path, ExportConfig(min_mesh_voxels=1000))


WRITERS = {
    "a.json": lambda path: atomic.write_json(path, NOISE.tolist()),
    "record.yaml": lambda path: atomic.write_text_once(path, "x" * 100_000),
    "weights.h5": lambda path: hdf5.write_arrays(path, {"a": NOISE}, {}),
    "coordinates.h5": rows,
    "volume.h5": volume,
    "labels.zarr": voxels,
    "export": shown,
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_writer_names_the_full_disk_and_leaves_nothing(full, name):
    with pytest.raises(UnwritableError, match=str(full)):
        WRITERS[name](full / name)
    if name != "export":  # which is resumed
        assert list(full.iterdir()) == []


def test_a_disk_without_room_for_a_log_is_full(full):
    assert full_disk(full / "logs/a.log") is None
    (full / "filler").write_bytes(bytes(4096))
    assert str(full) in full_disk(full / "logs/a.log")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_each_reason_has_a_line_of_its_own(tmp_path, number):
    found = {line_of(OSError(other, "x"), tmp_path) for other in (number, errno.EIO)}
    assert None in found and len(found) == 2
    with pytest.raises(UnwritableError), named(tmp_path):
        raise ValueError(f"RESOURCE_EXHAUSTED: Error writing local file [os_error_code='{number}']")


def test_rights_are_named_where_they_are_lacking_to_read(tmp_path, monkeypatch):
    for reason in (PermissionError(errno.EACCES, "x"), ValueError("PERMISSION_DENIED: x [os_error_code='13']")):
        with (
            pytest.raises(VolumeError, match="a.h5: .*rights") as refused,
            atomic.unreadable("a.h5", "a file. Delete it"),
        ):
            raise reason
        assert "Delete" not in str(refused.value)

    def stat(path, **options):
        raise PermissionError(errno.EACCES, "x", str(path))

    monkeypatch.setattr("pathlib.Path.stat", stat)  # what a folder that may not be searched says of what is in it
    assert f"{tmp_path}," in line_of(PermissionError(errno.EACCES, "x"), tmp_path / "info")


def test_an_input_that_may_not_be_read_is_no_fault_and_the_guard_changes_no_file(tmp_path):
    with pytest.raises(PermissionError), named(tmp_path / "results/out"):
        raise PermissionError(errno.EACCES, "Permission denied", "/archive/raw.h5")
    hdf5.write_arrays(tmp_path / "a.h5", {"a": NOISE}, {"b": 1}, compressed=True)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("a", data=NOISE, compression="gzip", shuffle=True, chunks=NOISE.shape)
        file.attrs.update({"b": 1})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_the_former_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/first").touch()

    def replace(source, target):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("pathlib.Path.replace", replace)
    with pytest.raises(OSError), atomic.atomic_path(tmp_path / "out") as temporary:
        temporary.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "first"]
