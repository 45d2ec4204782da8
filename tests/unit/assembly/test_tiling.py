"""A grid of overlapping subvolumes, and the tables of bodies that go with it."""

import contextlib
import itertools

import numpy as np
import pytest

from ffn.assembly.contacts import OVERLAPS, Objects, read_overlaps
from ffn.assembly.subvolumes import Subvolumes, Tiling
from ffn.contingency import add_up
from ffn.errors import VolumeError
from ffn.geometry import Box, tile

from ..volumes import write
from .conftest import TILES

TILINGS = [  # box, size, overlap
    (Box((0, 0, 0), (23, 10, 10)), (10, 10, 10), (6, 0, 0)),  # three tiles share voxels
    (Box((-5, 3, 0), (20, 31, 12)), (9, 11, 12), (3, 4, 2)),
    (Box((0, 0, 0), (30, 4, 21)), (10, 4, 7), (0, 0, 0)),  # no overlap at all
]


@pytest.mark.parametrize(("box", "size", "overlap"), TILINGS)
def test_cores_partition_the_hull(box, size, overlap):
    tiling = Tiling.of(tile(box, size, overlap)[::-1])
    seen = np.zeros(box.shape, int)
    for number in range(len(tiling)):
        inner = tiling.core(number)
        assert tiling[number].contains(inner)
        seen[inner.slices(box.start)] += 1
    assert tiling.hull == box
    assert (seen == 1).all()


@pytest.mark.parametrize(("box", "size", "overlap"), TILINGS)
def test_overlaps_and_cores_are_those_of_an_exhaustive_search(box, size, overlap):
    tiling = Tiling.of(tile(box, size, overlap))
    boxes = list(tiling)
    pairs = itertools.combinations(range(len(boxes)), 2)
    expected = [(i, j) for i, j in pairs if not boxes[i].intersect(boxes[j]).is_empty]
    assert [(i, j) for i in range(len(boxes)) for j in tiling.overlapped_by(i)] == expected
    for block in box.blocks((7, 30, 8)):
        parts = [(number, tiling.core(number).intersect(block)) for number in range(len(boxes))]
        assert list(tiling.cores_in(block)) == [(number, part) for number, part in parts if not part.is_empty]


@pytest.mark.parametrize(
    ("boxes", "found"),
    [
        (TILES[:-2], "none is at 19:43,20:50,30:58"),
        ([Box((0, 0, 0), (4, 5, 6)), Box((5, 0, 0), (9, 5, 6))], "0:4 is followed by 5:9 on axis z"),
        ([Box((0, 0, 0), (4, 5, 6)), Box((0, 0, 1), (4, 5, 4))], "0:6 is followed by 1:4 on axis x"),
    ],
)
def test_boxes_that_do_not_form_a_tiling_are_refused(boxes, found):
    with pytest.raises(VolumeError, match=found):
        Tiling.of(boxes)


def test_the_least_recently_used_volume_is_closed(monkeypatch):
    events = []

    @contextlib.contextmanager
    def recorded(spec):
        events.append(f"+{spec}")
        try:
            yield spec
        finally:
            events.append(f"-{spec}")

    monkeypatch.setattr("ffn.assembly.subvolumes.open_segmentation", recorded)
    monkeypatch.setattr("ffn.assembly.subvolumes.MAX_OPEN", 2)
    subvolumes = Subvolumes(Tiling(([(0, 1)], [(0, 1)], [(0, 1), (1, 2), (2, 3)])), list("abc"), (1.0, 1.0, 1.0))
    assert "".join(map(subvolumes.volume, (0, 1, 0, 2))) == "abac"
    assert events == ["+a", "+b", "+c", "-b"]


def test_all_rows_near_a_box_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.io.scratch.ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(0)
    cells = rng.integers((-1, 1, 4), (4, 6, 11), (500, 3)) * (12, 24, 24)
    rows = add_up(np.column_stack([rng.integers(1, 9, 500), rng.integers(9, 99, 500), cells, rng.integers(1, 99, 500)]))
    spec = write(tmp_path / "base.zarr", np.zeros((4, 5, 6), np.uint64), tables={OVERLAPS: rows})
    near = Box((0, 48, 120), (24, 120, 240))
    assert 0 < len(found := read_overlaps(spec, near)) < 500
    assert found.tolist() == rows[near.holds(rows[:, 2:5])].tolist()


def test_only_pairs_of_segments_that_are_there_are_listed():
    objects = Objects(np.array([(n, 1) for n in range(1, 100_001)]))  # 5·10⁹ pairs
    assert objects.segments(np.array([(1, 200_000)]), np.array([5, 99_000, 200_000])).tolist() == [
        [5, 99_000],
        [5, 200_000],
        [99_000, 200_000],
    ]
