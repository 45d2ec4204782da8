"""Volumes on disk, and the subvolumes of one volume."""

import numpy as np

from ffn.geometry import Box, tile
from ffn.io.hdf5_volume import create_volumes
from ffn.io.open import open_volume
from ffn.io.volume import Placement

TILED = Box((3, 0, 10), (43, 50, 70))
TILES = tile(TILED, (24, 30, 28), (8, 10, 8))


def write(path, voxels, start=(0, 0, 0), size=(1.0, 1.0, 1.0), tables=None):
    """Write a volume whose dataset has the name of the file; return its specification."""
    box = Box.from_shape(voxels.shape, start)
    with create_volumes(path, {path.stem: voxels.dtype}, Placement(box, size), tables or {}) as writers:
        writers[path.stem].write(box, voxels)
    return f"{path}:{path.stem}"


def read(spec):
    """Return the voxels of a volume."""
    with open_volume(spec) as volume:
        return volume.read()


def write_tiles(folder, labels, rng=None):
    """Write the subvolumes of `labels`, a volume at `TILED`; with `rng`, the ids of each are permuted."""
    specs = []
    for box in TILES:
        part = labels[box.slices(TILED.start)]
        if rng is not None:
            names = rng.permutation(np.arange(1, 1000, dtype=np.uint64))[:20]
            part = np.where(part == 0, 0, names[part.astype(int)])
        specs.append(write(folder / f"{box.stem}.h5", part, box.start, (10, 10, 20)))
    return specs
