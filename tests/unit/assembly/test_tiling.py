"""A grid of overlapping subvolumes."""

import itertools

import numpy as np
import pytest

from ffn.assembly.tiling import Tiling
from ffn.errors import VolumeError
from ffn.geometry import Box, tile

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
