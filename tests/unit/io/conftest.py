"""A small HDF5 volume."""

import numpy as np
import pytest

from ffn.io.hdf5_volume import create_volume

from .volumes import PLACEMENT, VOXELS


@pytest.fixture
def spec(tmp_path):
    """Path and dataset of a volume that holds `VOXELS` at `PLACEMENT`."""
    spec = f"{tmp_path}/raw.h5:raw"
    with create_volume(spec, np.uint16, PLACEMENT) as out:
        out.write(PLACEMENT.box, VOXELS)
    return spec
