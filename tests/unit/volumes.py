"""Volumes on disk."""

import numpy as np

from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.viewing.precomputed import open_scale

from ..volumes import write_volume


def write(path, voxels, start=(0, 0, 0), size=(10.0, 10.0, 10.0), tables=None, record=None):
    """Write a store, or an HDF5 file whose dataset has the name of the file; return the volume's specification."""
    spec = f"{path}:{path.stem}" if path.suffix == ".h5" else path
    return write_volume(spec, voxels, Placement(Box.from_shape(voxels.shape, start), size, record or {}), tables)


def read(spec):
    """Return the voxels of a volume."""
    with open_volume(spec) as volume:
        return volume.read()


def read_scale(path, mip):
    """Return the voxels of one mip of an export."""
    return np.ascontiguousarray(open_scale(path, mip).read().result())
