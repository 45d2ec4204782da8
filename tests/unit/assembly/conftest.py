"""The subvolumes of one volume."""

import weakref

import numpy as np
import pytest

from ffn.assembly.stacked import TABLES, Stacked
from ffn.geometry import Box, tile
from ffn.io.block_records import BlockRecords

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
        specs.append(write(folder / f"{box.stem}.h5", part, box.start, (10, 10, 20)))
    return specs


def stacked(learnt):
    """Return the tables of subvolumes, each with ``ids`` and any others."""
    nothing = {name: np.zeros((0, *columns), dtype) for name, (columns, dtype) in TABLES.items()}
    return Stacked({**nothing, **each} for each in learnt)


@pytest.fixture
def blocks_in_memory(monkeypatch):
    """For each record of a block that is read, of how many of those before there are still arrays in memory."""
    read, arrays, alive = BlockRecords.learnt, [], []

    def learnt(records, block):
        alive.append(sum(any(array() is not None for array in of_block) for of_block in arrays))
        found = read(records, block)
        arrays.append([weakref.ref(array) for array in found.values() if isinstance(array, np.ndarray)])
        return found

    monkeypatch.setattr(BlockRecords, "learnt", learnt)
    monkeypatch.setattr("ffn.contingency.MIN_PENDING_ROWS", 0)
    monkeypatch.setattr("ffn.io.scratch.MAX_WAITING", 0)
    return alive
