"""Tables beside a segmentation: overlaps near a box are found without the rest, and objects have components."""

import numpy as np
import pytest

from ffn.assembly import tables as tables_module
from ffn.assembly.tables import OVERLAPS, Objects, OverlapIndex, read_overlaps
from ffn.contingency import add_up
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume, read_table

from ..volumes import write

BOX = Box((-5, 30, 100), (40, 130, 260))
SIZE = (20.0, 10.0, 10.0)  # cells of 12 × 24 × 24 voxels


@pytest.fixture
def rows_read(monkeypatch):
    """Numbers of rows of tables that are looked at."""
    read, seen = tables_module.read_table, []

    def counted(spec, name, keep=None, ranges=None):
        return read(spec, name, keep and (lambda rows: seen.append(len(rows)) or keep(rows)), ranges)

    monkeypatch.setattr(tables_module, "read_table", counted)
    return seen


@pytest.mark.parametrize("is_sorted", [True, False])
def test_all_rows_near_a_box_are_found_and_few_others_read(is_sorted, tmp_path, monkeypatch, rows_read):
    monkeypatch.setattr(tables_module, "CELLS", 2)
    monkeypatch.setattr("ffn.io.scratch.ROWS_AT_ONCE", 7)
    rng, index = np.random.default_rng(0), OverlapIndex(BOX, SIZE)
    cells = rng.integers((-1, 1, 4), (4, 6, 11), (500, 3)) * (12, 24, 24)
    rows = add_up(np.column_stack([rng.integers(1, 9, 500), rng.integers(9, 99, 500), cells, rng.integers(1, 99, 500)]))
    tables = index.tables(rows) if is_sorted else {OVERLAPS: rows}
    spec = write(tmp_path / "base.zarr", np.zeros(BOX.shape, np.uint64), BOX.start, SIZE, tables=tables)
    with open_volume(spec) as volume:
        for _ in range(20):
            start = rng.integers((-1, 1, 4), (4, 6, 11)) * (12, 24, 24)
            near = Box(tuple(start.tolist()), tuple((start + rng.integers(1, 3, 3) * (12, 24, 24)).tolist()))
            rows_read.clear()
            assert read_overlaps(spec, volume, near).tolist() == rows[near.holds(rows[:, 2:5])].tolist()
            wide = near.grow((12, 24, 24))  # places are two cells wide
            assert not is_sorted or sum(rows_read) <= wide.holds(rows[:, 2:5]).sum()
    assert sorted(read_table(spec, OVERLAPS).tolist()) == rows.tolist()


@pytest.mark.parametrize("size", [(5.0, 10.0, 10.0), (40.0, 10.0, 10.0)])
def test_a_table_of_another_voxel_size_is_refused(size, tmp_path, monkeypatch):
    """Rows would be looked for in other places, and some of those near a box not found."""
    monkeypatch.setattr(tables_module, "CELLS", 1)
    tables = OverlapIndex(BOX, SIZE).tables(np.zeros((0, 6), np.int64))
    spec = write(tmp_path / "base.zarr", np.zeros(BOX.shape, np.uint64), BOX.start, size, tables=tables)
    with open_volume(spec) as volume, pytest.raises(VolumeError, match="first_overlap"):
        read_overlaps(spec, volume, BOX)


def test_only_pairs_of_segments_that_are_there_are_listed():
    objects = Objects(np.array([(n, 1) for n in range(1, 100_001)]))  # 5·10⁹ pairs
    assert objects.segments(np.array([(1, 200_000)]), np.array([5, 99_000, 200_000])).tolist() == [
        [5, 99_000],
        [5, 200_000],
        [99_000, 200_000],
    ]
