"""Volumes on disk."""

import numpy as np

from ffn.geometry import Box
from ffn.io.create import create_volumes
from ffn.io.open import open_volume
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, volume_in
from ffn.viewing.precomputed import open_scale


def write(path, voxels, start=(0, 0, 0), size=(1.0, 1.0, 1.0), tables=None, record=None):
    """Write a store, or an HDF5 file whose dataset has the name of the file; return the volume's specification."""
    box, name = Box.from_shape(voxels.shape, start), MAIN if path.suffix == ".zarr" else path.stem
    with create_volumes(path, {name: voxels.dtype}, Placement(box, size, record or {}), tables or {}) as writers:
        writers[name].write(box, voxels)
    return volume_in(str(path), name)


def read(spec):
    """Return the voxels of a volume."""
    with open_volume(spec) as volume:
        return volume.read()


def read_scale(path, mip):
    """Return the voxels of one mip of an export."""
    return np.ascontiguousarray(open_scale(path, mip).read().result())
