"""N5 as its reference implementation in C++ writes it, through z5py."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.open import open_mip

from .readers import SHAPE, check, voxels

z5py = pytest.importorskip("z5py")


def write(path, name, array, attributes=None, **options):
    """Write a dataset with z5py, which turns the axes z, y, x of NumPy into the x, y, z of N5."""
    with z5py.File(str(path), "a", use_zarr_format=False) as file:
        dataset = file.create_dataset(name, data=array, chunks=(2, 5, 7), **options)
        dataset.attrs.update(attributes or {})


@pytest.mark.parametrize("compression", ["raw", "gzip", "blosc"])
def test_every_compression_is_read(tmp_path, compression):
    write(tmp_path / "a.n5", "volumes/raw", voxels(), compression=compression)
    assert check(f"{tmp_path}/a.n5/volumes/raw") is None


@pytest.mark.parametrize("dtype", [np.uint16, np.uint64, np.int32])
def test_big_endian_numbers_are_read(tmp_path, dtype):
    """N5 stores the high byte first."""
    array = voxels(dtype) * np.array(100, dtype)
    write(tmp_path / "a.n5", "labels", array, compression="gzip")
    check(f"{tmp_path}/a.n5/labels", array)


def test_attributes_tell_the_place(tmp_path):
    write(tmp_path / "a.n5", "raw", voxels(), {"resolution": [4.0, 8.0, 40.0], "offset": [40.0, -16.0, 400.0]})
    assert check(f"{tmp_path}/a.n5/raw", box=Box.from_shape(SHAPE, (10, -2, 10))) == (40, 8, 4)


def test_a_group_of_scales_is_an_image(tmp_path):
    pixels = {"pixelResolution": {"unit": "nm", "dimensions": [8.0, 8.0, 40.0]}}
    write(tmp_path / "a.n5", "raw/s0", voxels(), pixels)
    write(tmp_path / "a.n5", "raw/s1", voxels()[:, ::2, ::2], {**pixels, "downsamplingFactors": [2, 2, 1]})
    with open_mip(f"{tmp_path}/a.n5/raw", 1) as volume:
        assert volume.voxel_size_zyx_nm == (40, 16, 16)
        assert np.array_equal(volume.read(), voxels()[:, ::2, ::2])
