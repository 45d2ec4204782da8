"""Volumes on disk."""

from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volumes
from ffn.io.open import open_volume
from ffn.io.volume import Placement


def write(path, voxels, start=(0, 0, 0), size=(1.0, 1.0, 1.0), tables=None, record=None):
    """Write a volume whose dataset has the name of the file; return its specification."""
    box = Box.from_shape(voxels.shape, start)
    with create_volumes(path, {path.stem: voxels.dtype}, Placement(box, size, record or {}), tables or {}) as writers:
        writers[path.stem].write(box, voxels)
    return f"{path}:{path.stem}"


def read(spec):
    """Return the voxels of a volume."""
    with open_volume(spec) as volume:
        return volume.read()
