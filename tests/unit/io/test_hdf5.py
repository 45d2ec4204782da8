import json

import numpy as np
import pytest

from ffn.errors import ModelError, VolumeError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.volume import Placement

from ...volumes import create_volume

ARRAYS = {"conv/weights": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7)}


def write(path):
    hdf5.write_arrays(path, ARRAYS, {"note": json.dumps([1]), "rate": 0.5})
    return path


def test_any_exception_of_h5py_for_a_damaged_file_is_one_error(tmp_path, monkeypatch):
    path = write(tmp_path / "w.h5")

    def fail(*_):
        raise RuntimeError("bad symbol table node")

    monkeypatch.setattr(hdf5.h5py.Group, "visititems", fail)
    with pytest.raises(ModelError, match="w.h5: .*bad symbol"):
        hdf5.read_arrays(path, ModelError)
    with hdf5.open_file(path) as file, pytest.raises(VolumeError, match="w.h5: is damaged"):
        hdf5.list_datasets(file)


@pytest.mark.parametrize("address", ["s3://bucket/raw.h5", "https://example.org/raw.h5"])
def test_a_file_in_a_bucket_or_on_a_server_is_not_taken_for_one_here(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VolumeError, match=f"{address}: .* NAME.zarr"):
        hdf5.open_file(address)
    with pytest.raises(VolumeError, match=f"{address}: .* NAME.zarr"), hdf5.create_file(address):
        pass
    with (
        pytest.raises(VolumeError, match=f"{address}: "),
        create_volume(f"{address}:raw", np.uint8, Placement(Box((0, 0, 0), (2, 3, 4)))),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_rows_are_taken_in_any_order_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "ROWS_PER_CHUNK", 8)
    rows = np.random.default_rng(1).integers(0, 1000, (61, 3)).astype(np.int32)
    with hdf5.create_file(tmp_path / "t.h5") as file:
        table = hdf5.create_rows(file, "t", 3, np.int32)
        for part in np.split(rows, [5, 5, 40]):
            hdf5.append_rows(table, part)
    wanted = np.array([60, 0, 7, 8, 60, 33, 1])
    with hdf5.open_file(tmp_path / "t.h5") as file:
        np.testing.assert_array_equal(hdf5.take_rows(file["t"], wanted), rows[wanted])
        assert hdf5.take_rows(file["t"], wanted[:0]).shape == (0, 3)
