import os

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.io.open import identity, open_volume, read_table
from ffn.io.scratch import ScratchRows

from ...volumes import create_volumes
from .volumes import PLACEMENT, VOXELS


def test_the_error_for_a_wrong_dataset_lists_those_in_the_file(spec):
    with pytest.raises(VolumeError, match=r"found \['raw'\].*'labels'"), open_volume(spec[:-3] + "labels"):
        pass


def test_one_of_several_datasets_must_be_named(tmp_path):
    with create_volumes(tmp_path / "m.h5", {"edges": np.uint8, "distance": np.float32}, PLACEMENT):
        pass
    with pytest.raises(VolumeError, match=r"found \['distance', 'edges'\]"), open_volume(tmp_path / "m.h5"):
        pass


def test_of_a_large_table_only_the_rows_to_keep_are_in_memory(tmp_path, monkeypatch):
    name = "volume.zarr"
    rows, seen = np.arange(14).reshape(7, 2), []
    with create_volumes(tmp_path / name, {"0": np.uint8}, PLACEMENT, {"rows": rows, "none": rows[:0]}) as writers:
        writers["0"].write(PLACEMENT.box, VOXELS)
    monkeypatch.setattr("ffn.io.scratch.ROWS_AT_ONCE", 3)

    def keep(part):
        seen.append(len(part))
        return part[:, 0] % 4 == 0

    assert read_table(tmp_path / name, "rows", keep).tolist() == rows[::2].tolist() and seen == [3, 3, 1]
    assert read_table(tmp_path / name, "none", keep).shape == (0, 2)


def test_of_a_small_file_the_content_counts_not_its_time(tmp_path):
    path = tmp_path / "mask.npy"
    np.save(path, np.zeros((4, 5, 6), np.uint8))
    before = identity(path)
    os.utime(path, (1, 1))
    assert identity(path) == before
    np.save(path, np.ones((4, 5, 6), np.uint8))
    os.utime(path, (1, 1))
    assert identity(path) != before


def test_what_lies_behind_a_link_in_a_folder_counts(tmp_path, monkeypatch):
    """An array on another disk."""
    monkeypatch.chdir(tmp_path)
    for folder in ("disk/s0", "raw.n5"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "raw.n5/s0").symlink_to("../disk/s0")
    (tmp_path / "disk/s0/1").write_text("1")
    before = identity("raw.n5")
    (tmp_path / "disk/s0/1").write_text("12")
    assert identity("raw.n5") != before


def test_a_full_disk_is_one_line(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir, buffering: open("/dev/full", "w+b", buffering))
    rows = ScratchRows((), np.int64, None)
    rows.append(np.arange(3))
    with pytest.raises(VolumeError, match="no space is left"):
        rows[:]
