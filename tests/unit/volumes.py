"""Volumes on disk."""

import numpy as np

from ffn.geometry import Box
from ffn.io import hdf5_volume
from ffn.io.open import open_volume
from ffn.io.store import create_volumes
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement
from ffn.viewing.precomputed import open_scale


def write(path, voxels, start=(0, 0, 0), size=(1.0, 1.0, 1.0), tables=None, record=None):
    """Write a store, or an HDF5 file whose dataset has the name of the file; return the volume's specification."""
    box = Box.from_shape(voxels.shape, start)
    placement = Placement(box, size, record or {})
    if path.suffix == ".h5":
        assert not tables, "tables are in stores"
        with hdf5_volume.create_volume(str(path), path.stem, voxels.dtype, placement) as writer:
            writer.write(box, voxels)
        return f"{path}:{path.stem}"
    with create_volumes(path, {MAIN: voxels.dtype}, placement, tables or {}) as writers:
        writers[MAIN].write(box, voxels)
    return str(path)


def read(spec):
    """Return the voxels of a volume."""
    with open_volume(spec) as volume:
        return volume.read()


def read_scale(path, mip):
    """Return the voxels of one mip of an export."""
    return np.ascontiguousarray(open_scale(path, mip).read().result())
