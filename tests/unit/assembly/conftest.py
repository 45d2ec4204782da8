"""The subvolumes of one volume."""

import numpy as np

from ffn.geometry import Box, tile

from ..volumes import write

TILED = Box((3, 0, 10), (43, 50, 70))
TILES = tile(TILED, (24, 30, 28), (8, 10, 8))


def write_tiles(folder, labels, rng=None):
    """Write the subvolumes of `labels`, a volume at `TILED`; with `rng`, the ids of each are permuted."""
    specs = []
    for box in TILES:
        part = labels[box.slices(TILED.start)]
        if rng is not None:
            names = rng.permutation(np.arange(1, 1000, dtype=np.uint64))[:20]
            part = np.where(part == 0, 0, names[part.astype(int)])
        specs.append(write(folder / f"{box.stem}.zarr", part, box.start, (10, 10, 20)))
    return specs
