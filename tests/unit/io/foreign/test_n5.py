"""N5 as its reference implementation in C++ writes it, through z5py."""

import numpy as np
import pytest

from .readers import check, voxels

z5py = pytest.importorskip("z5py")


@pytest.mark.parametrize(("dtype", "compression"), [(np.uint8, "raw"), (np.uint64, "gzip"), (np.int32, "blosc")])
def test_axes_and_big_endian_numbers_are_read(tmp_path, dtype, compression):
    """z5py turns the axes z, y, x of NumPy into the x, y, z of N5, which stores the high byte first."""
    array = voxels(dtype) * np.array(1 if dtype is np.uint8 else 100, dtype)
    with z5py.File(f"{tmp_path}/a.n5", "w", use_zarr_format=False) as file:
        file.create_dataset("volumes/raw", data=array, chunks=(2, 5, 7), compression=compression)
    assert check(f"{tmp_path}/a.n5/volumes/raw", array) is None
