"""The subvolumes of one volume."""

import contextlib

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


class Killed(BaseException):
    """What a process that is killed does not get past."""


@pytest.fixture
def check_jobs(tmp_path, monkeypatch):
    """Function that checks that one process, several jobs, and one killed every few blocks leave the same files."""

    def check(run, jobs, blocks_between_kills=1):
        run(tmp_path / "one")
        for job in jobs:
            run(tmp_path / "several", "--job", job)
        write, kills, finished = BlockRecords.write, 0, False
        while not finished:
            written = []

            def write_some(records, block, learnt, written=written):
                if len(written) == blocks_between_kills:
                    raise Killed
                write(records, block, learnt)
                written.append(block)

            monkeypatch.setattr(BlockRecords, "write", write_some)
            with contextlib.suppress(Killed):
                run(tmp_path / "killed")
                finished = True
            kills += not finished
        one, several, killed = (files(tmp_path / name) for name in ("one", "several", "killed"))
        assert one == several and one == killed and kills

    return check


def files(folder):
    """Return the content of all files in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
