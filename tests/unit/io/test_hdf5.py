import json

import h5py
import numpy as np
import pytest

from ffn.errors import ModelError, VolumeError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.config import IngestConfig
from ffn.io.ingest import ingest
from ffn.io.open import open_volume
from ffn.io.volume import Placement

from ...volumes import create_volume
from .volumes import PLACEMENT, SHAPE, START, VOXELS, write_foreign


@pytest.mark.parametrize("dtype", [">u2", ">u8", ">f4", "?"])
def test_voxels_are_in_the_byte_order_of_this_machine(tmp_path, dtype):
    voxels = VOXELS.astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = voxels
    with open_volume(tmp_path / "a.h5") as volume:
        found = volume.read()
        assert volume.dtype.isnative and found.dtype == volume.dtype == voxels.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, voxels)


def test_a_virtual_dataset_whose_file_is_gone_is_refused(tmp_path):
    layout = h5py.VirtualLayout(SHAPE, np.uint8)
    layout[:] = h5py.VirtualSource("part.h5", "raw", SHAPE)
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["raw"] = np.ones(SHAPE, np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_virtual_dataset("raw", layout)
    with open_volume(tmp_path / "a.h5") as volume:
        assert volume.read().all()
    (tmp_path / "part.h5").unlink()
    with pytest.raises(VolumeError, match="part.h5"), open_volume(tmp_path / "a.h5"):
        pass


@pytest.mark.parametrize("dtype", [np.complex64, "S3", [("r", "u1"), ("g", "u1")]])
def test_voxels_that_are_not_numbers_are_refused(tmp_path, dtype):
    spec = write_foreign(tmp_path / "a.h5", dtype=dtype)
    with pytest.raises(VolumeError, match="a.h5:raw: has type"), open_volume(spec):
        pass


def test_a_flipped_bit_is_an_error(spec, tmp_path):
    path = tmp_path / "raw.h5"
    with h5py.File(path) as file:
        chunk = file["raw"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 4
    path.write_bytes(content)
    with open_volume(spec) as volume, pytest.raises(VolumeError, match="raw.h5:raw: cannot be read"):
        volume.read()


ILASTIK = {"axistags": json.dumps({"axes": [{"key": key, "typeFlags": 2} for key in "txyzc"]})}


@pytest.mark.parametrize(
    "order, attributes",
    [
        ((0, 2, 3, 4, 1), {"transform": np.eye(4)}),  # t, z, y, x, c; an array of another program
        ((0, 4, 3, 2, 1), ILASTIK),
        ((0, 1, 2, 3, 4), {"axis_names": ["t^", "c^", "z", "y", "x"]}),  # funlib
    ],
    ids=["no names", "ilastik", "funlib"],
)
def test_axes_of_length_1_are_dropped(tmp_path, order, attributes):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["exported_data"] = VOXELS[None, None].transpose(order)
        file["exported_data"].attrs.update(attributes)
    with open_volume(tmp_path / "a.h5") as volume:
        assert volume.box == Box.from_shape(SHAPE)
        np.testing.assert_array_equal(volume.read(), VOXELS)
        np.testing.assert_array_equal(volume.read(Box((1, 2, 3), (4, 7, 9))), VOXELS[1:4, 2:7, 3:9])


def test_a_dataset_elsewhere_or_without_voxels_is_no_volume(tmp_path):
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file["raw"] = h5py.Empty("uint8")
    with pytest.raises(VolumeError, match="empty.h5:raw: .*without voxels"):
        open_volume(f"{tmp_path / 'empty.h5'}:raw").__enter__()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("raw", (2, 3, 4), "uint8", external=[("/etc/passwd", 0, 24)])
    with pytest.raises(VolumeError, match="/etc/passwd"), open_volume(f"{tmp_path}/a.h5:raw"):
        pass


def test_a_dataset_is_found_behind_a_link(spec, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = h5py.ExternalLink("raw.h5", "/raw")
        file["same"] = h5py.SoftLink("/raw")
        file["gone"] = h5py.SoftLink("/none")
        file["lost"] = h5py.ExternalLink("none.h5", "/raw")
    for name in ("raw", "/same"):
        with open_volume(f"{tmp_path}/a.h5:{name}") as volume:
            assert volume.box.start == START
            np.testing.assert_array_equal(volume.read(), VOXELS)
    for name in ("gone", "lost"):
        with pytest.raises(VolumeError, match=f"a.h5: .*'{name}'"):
            open_volume(f"{tmp_path}/a.h5:{name}").__enter__()


def test_a_compression_that_is_not_installed_is_named(tmp_path):
    """Blosc, which HDF5 does not bring; the file is whole."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(SHAPE)
        plan.set_filter(32001, h5py.h5z.FLAG_OPTIONAL)
        place = h5py.h5s.create_simple(SHAPE)
        dataset = h5py.h5d.create(file.id, b"raw", h5py.h5t.NATIVE_UINT8, place, plan)
        dataset.write_direct_chunk((0, 0, 0), b"compressed")
    with pytest.raises(VolumeError, match="a.h5:raw: .*h5repack"), open_volume(f"{tmp_path}/a.h5:raw") as volume:
        volume.read()


def test_a_file_with_other_datasets_is_not_replaced(spec, tmp_path):
    with (
        pytest.raises(VolumeError, match=r"raw.h5: holds \['raw'\]"),
        hdf5.create_volume(f"{tmp_path}/raw.h5", "labels", np.uint64, PLACEMENT),
    ):
        pass
    with open_volume(spec) as volume:
        assert np.array_equal(volume.read(), VOXELS)


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
    with hdf5.open_file(path) as file, pytest.raises(VolumeError, match="w.h5: cannot be read"):
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


def test_a_place_between_voxels_is_refused_until_one_is_given(tmp_path):
    place = {"resolution": (40.0, 4.0, 4.0), "offset": (0.0, 6.0, 0.0), "provenance": "made by hand"}
    spec = write_foreign(tmp_path / "a.h5", place)
    with pytest.raises(VolumeError, match="a.h5:raw: .*--offset"), open_volume(spec):
        pass
    ingest(spec, f"{tmp_path}/a.zarr", IngestConfig(offset_zyx=START))
    with open_volume(f"{tmp_path}/a.zarr") as volume:
        assert volume.box == Box.from_shape(SHAPE, START)
