"""Tables of overlaps in the order of places: what is near a box is found without the rest."""

import numpy as np
import pytest

from ffn.assembly import places as sorting
from ffn.assembly.places import OVERLAPS, Places, ranges_near
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import read_table

from ..volumes import write

BOX = Box((-5, 30, 100), (40, 130, 260))
SIZE = (20.0, 10.0, 10.0)  # cells of 12 × 24 × 24 voxels


@pytest.mark.parametrize("name", ["base.h5", "base.zarr"])
def test_a_part_of_the_table_has_all_rows_near_a_box_and_few_others(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sorting, "CELLS", 2)
    monkeypatch.setattr("ffn.io.scratch.ROWS_AT_ONCE", 7)
    rng, places = np.random.default_rng(0), Places(BOX, SIZE)
    cells = rng.integers((-1, 1, 4), (4, 6, 11), (500, 3)) * (12, 24, 24)
    rows = np.column_stack([rng.integers(1, 99, (500, 2)), cells, rng.integers(1, 99, 500)])
    spec = write(tmp_path / name, np.zeros(BOX.shape, np.uint64), BOX.start, SIZE, tables=places.tables(rows))
    assert sorted(read_table(spec, OVERLAPS).tolist()) == sorted(rows.tolist())
    for _ in range(20):
        start = rng.integers((-1, 1, 4), (4, 6, 11)) * (12, 24, 24)
        near = Box(tuple(start.tolist()), tuple((start + rng.integers(1, 3, 3) * (12, 24, 24)).tolist()))
        wide = near.grow((12, 24, 24))  # places are two cells wide
        found = read_table(spec, OVERLAPS, ranges=ranges_near(spec, places, near))
        inside = rows[near.holds(rows[:, 2:5])].tolist()
        assert sorted(row for row in found.tolist() if near.holds(np.array([row[2:5]]))[0]) == sorted(inside)
        assert wide.holds(found[:, 2:5]).all()


@pytest.mark.parametrize("name", ["base.h5", "base.zarr"])
@pytest.mark.parametrize("size", [(5.0, 10.0, 10.0), (40.0, 10.0, 10.0)])
def test_a_table_of_another_voxel_size_is_refused(name, size, tmp_path, monkeypatch):
    """Rows would be looked for in other places, and some of those near a box not found."""
    monkeypatch.setattr(sorting, "CELLS", 1)
    tables = Places(BOX, SIZE).tables(np.zeros((0, 6), np.int64))
    spec = write(tmp_path / name, np.zeros(BOX.shape, np.uint64), BOX.start, size, tables=tables)
    with pytest.raises(VolumeError, match="'first_overlap' is not of its voxel size, expected .* rows. .* changed"):
        ranges_near(spec, Places(BOX, size), BOX)


def test_a_table_in_another_order_has_no_ranges(tmp_path):
    spec = write(tmp_path / "base.h5", np.zeros((2, 3, 4), np.uint64), tables={OVERLAPS: np.zeros((0, 6), np.int64)})
    assert ranges_near(spec, Places(Box.from_shape((2, 3, 4)), SIZE), Box.from_shape((2, 3, 4))) is None
