import numpy as np
import pytest

from ffn.errors import ConfigError
from ffn.geometry import Box, tile

BOX = Box((1, -2, 30), (9, 14, 62))


def marked(boxes, within):
    """How often each voxel of `within` is covered."""
    counts = np.zeros(within.shape, int)
    for box in boxes:
        counts[box.slices(within.start)] += 1
    return counts


@pytest.mark.parametrize("text", ["", "1:2,3:4", "1:2,3:4,5:6,7:8", "a:b,0:1,0:1", "0-4,0:4,0:4", "0:4.5,0:4,0:4"])
def test_other_text_is_no_box(text):
    with pytest.raises(ConfigError, match="expected z0:z1,y0:y1,x0:x1"):
        Box.parse(text)


@pytest.mark.parametrize("text", ["4:4,0:1,0:1", "0:1,5:2,0:1"])
def test_an_empty_box_is_refused(text):
    with pytest.raises(ConfigError, match="is empty"):
        Box.parse(text)


def test_slices_are_relative_to_the_origin_of_the_array():
    apart = Box((0, 0, 0), (4, 9, 9)).intersect(Box((6, 0, 0), (9, 9, 9)))
    with pytest.raises(AssertionError):
        apart.slices()
    array = np.zeros((12, 20, 40))
    array[BOX.slices((0, -4, 25))] = 1
    assert array.sum() == BOX.num_voxels
    assert array[1, 2, 5] == 1 and array[0, 2, 5] == 0 and array[1, 1, 5] == 0 and array[1, 2, 4] == 0


def test_extent_intersection_and_containment():
    assert BOX.shape == (8, 16, 32)
    assert BOX.num_voxels == 8 * 16 * 32
    assert Box.parse(" 1:9, -2:14 ,30:62 ") == BOX == Box.parse(str(BOX))
    assert Box((0, 0, 0), (2, -3, -4)).num_voxels == 0  # not (-3) * (-4)
    assert BOX.stem == "z000001-y-00002-x000030"
    assert BOX.intersect(Box((5, -9, 0), (99, 3, 40))) == Box((5, -2, 30), (9, 3, 40))
    assert BOX.intersect(Box((9, 0, 30), (12, 4, 40))).is_empty
    assert BOX.contains(BOX)
    assert not BOX.contains(BOX.grow((0, 0, 1)))
    assert BOX.contains(BOX.grow((-1, 0, 0)))


def test_blocks_cover_every_voxel_once_as_a_grid():
    blocks = list(BOX.blocks((3, 16, 5)))
    assert (marked(blocks, BOX) == 1).all()
    assert blocks == sorted(blocks)
    assert blocks[-1].shape == (2, 16, 2)
    grid = tile(BOX, (4, 7, 9), (1, 2, 3))
    boxes = list(grid)
    assert [grid[number] for number in range(len(grid))] == boxes == sorted(boxes)
    assert grid[-1] == boxes[-1] and grid[3:8] == boxes[3:8] and grid[::-1] == boxes[::-1]
    with pytest.raises(IndexError):
        grid[len(boxes)]


@pytest.mark.parametrize("size, overlap", [((4, 7, 9), (1, 2, 3)), ((8, 16, 32), (2, 2, 2)), ((5, 40, 31), (4, 0, 30))])
def test_tiles_cover_the_box_with_equal_sizes(size, overlap):
    tiles = tile(BOX, size, overlap)
    expected = tuple(min(a, b) for a, b in zip(size, BOX.shape, strict=True))
    assert {t.shape for t in tiles} == {expected}
    assert marked(tiles, BOX).min() == 1
    assert len(set(tiles)) == len(tiles)
    assert all(BOX.contains(t) for t in tiles)


def test_neighbouring_tiles_share_at_least_the_overlap():
    starts = sorted({t.start[2] for t in tile(Box((0, 0, 0), (1, 1, 100)), (1, 1, 30), (0, 0, 8))})
    assert all(a + 30 - b >= 8 for a, b in zip(starts, starts[1:], strict=False))
    assert starts[-1] == 70
    with pytest.raises(ConfigError, match="^overlap: "):
        tile(BOX, (8, 8, 8), (0, 8, 0))


def test_a_box_around_a_voxel_a_hull_and_a_middle():
    assert Box.around((1, -2, 30)) == Box((1, -2, 30), (2, -1, 31))
    assert Box.around((1, -2, 30), (0, 4, 2)) == Box((1, -6, 28), (2, 3, 33))
    boxes = [Box((1, 9, 30), (4, 12, 31)), Box((-2, 10, 40), (3, 11, 62)), Box((0, 0, 45), (1, 1, 46))]
    assert Box.hull(iter(boxes)) == Box((-2, 0, 30), (4, 12, 62))
    assert Box.hull([BOX]) == BOX
    inside = BOX.middle((2, 7, 32))
    assert inside == Box((4, 2, 30), (6, 9, 62))  # of an odd rest, the start gets the smaller half
    assert BOX.middle((10, 16, 33)) == Box((0, -2, 29), (10, 14, 62))


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (Box((2, 0, 40), (4, 3, 50)), Box((2, 0, 40), (4, 3, 50))),
        (Box((-5, 0, 60), (-1, 3, 70)), Box((1, 0, 52), (5, 3, 62))),
        (Box((-5, 5, 20), (20, 30, 21)), Box((1, -2, 30), (9, 14, 31))),
    ],
)
def test_a_box_moved_into_another_keeps_its_size_where_that_fits(box, expected):
    assert box.moved_into(BOX) == expected
