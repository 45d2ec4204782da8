"""N5 as its reference implementation in C++ writes it, through z5py."""

import numpy as np
import pytest

from .readers import check, voxels

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
