"""The subvolumes of one volume, and graphs."""

import numpy as np

from ffn.assembly.contacts import Contact
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
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


def edge(a, b, score):
    evidence = Evidence(90, 80, 4.5, 3.5, 1, 2, 3, 4, 0.9, 0.8, 0.7, 0.95, score, 0.5, 0.25, 0.0, 0.125)
    return MergeEdge.of(Contact(a, b, (1, 2, 3), 130.25, 40, 500), evidence, score)


def write_graph(path, *edges):
    path.write_text(header({"stage": "agglomerate"}) + "".join(f"{e.row()}\n" for e in edges))
    return str(path)
