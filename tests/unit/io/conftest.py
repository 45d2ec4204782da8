"""A small HDF5 volume."""

import pytest

from ...volumes import write_volume
from .volumes import PLACEMENT, VOXELS


@pytest.fixture
def spec(tmp_path):
    """Path and dataset of a volume that holds `VOXELS` at `PLACEMENT`."""
    return write_volume(f"{tmp_path}/raw.h5:raw", VOXELS, PLACEMENT)
