"""What the tests of records share: two volumes with tables of coordinates."""

import numpy as np

from ffn.io import hdf5
from ffn.io.training_records import COORDINATES_FORMAT, COORDINATES_GROUP

SIZES = {"a": {1: 40, 3: 7}, "b": {3: 20, 9: 500}}  # voxels by volume and partition


def write_coordinates(path, sizes, x) -> str:
    """Write tables of distinct voxels: x tells the volume, y the partition, z the row."""
    with hdf5.create_file(path) as file:
        file.attrs["format"] = COORDINATES_FORMAT
        for partition, size in sizes.items():
            table = hdf5.create_rows(file, f"{COORDINATES_GROUP}/{partition}", 3, np.int32)
            rows = np.stack([np.arange(size), np.full(size, partition), np.full(size, x)], axis=1)
            hdf5.append_rows(table, rows)
    return str(path)
