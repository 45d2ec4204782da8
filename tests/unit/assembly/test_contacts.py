"""Contacts between segments: which segments touch, how much, and where the image is brightest."""

import numpy as np
import pytest

from ffn.assembly.contacts import ALONE, Cells, Objects, Scene, around, combined, decision_points, find_contacts, spread
from ffn.geometry import Box, cell_shape
from ffn.io.open import open_volume

from ..volumes import write

BOX = Box((10, 20, 30), (26, 44, 62))
SIZE = (20.0, 10.0, 10.0)
NONE = np.empty((0, 6), np.int64)


@pytest.fixture
def volumes(tmp_path, monkeypatch):
    """Segments 3 and 7 along x with a dark gap that is bright in one place, and 9 after another gap behind 7."""
    labels = np.zeros(BOX.shape, np.uint64)
    labels[:, :, :14], labels[:, :, 18:26], labels[:, :, 30:] = 3, 7, 9
    image = np.full(BOX.shape, 150, np.uint8)
    image[:, :, 13:19] = image[:, :, 25:31] = 50
    image[4:9, 14:19, 13:19] = 150
    specs = (write(tmp_path / f"{n}.zarr", v, BOX.start, SIZE) for n, v in (("labels", labels), ("image", image)))
    monkeypatch.setattr("ffn.assembly.contacts.MAX_GAP_NM", 30.0)
    with open_volume(next(specs)) as one, open_volume(next(specs)) as other:
        yield one, other


def found_in(volumes, block, pairs, objects=ALONE):
    return find_contacts(Scene(*volumes, objects), block, np.array(pairs, np.uint64).reshape(-1, 2))


def contacts(volumes, blocks, pairs):
    return combined((found_in(volumes, block, pairs) for block in blocks), SIZE)


def points(volumes, pairs):
    """Pairs and places of decision points, and the faces around them."""
    cells = contacts(volumes, [BOX], pairs)
    faces, _ = around(cells, NONE, SIZE)
    return [
        (tuple(cells.pairs[row].tolist()), cells.position_zyx[row], faces[row], cells.brightness[row])
        for row in decision_points(cells, BOX, SIZE)
    ]


def test_the_decision_point_is_the_brightest_place_between_near_pairs(volumes, monkeypatch):
    ((pair, position, faces, brightness),) = points(volumes, [(3, 7)])
    z, y, x = position - BOX.start
    assert pair == (3, 7) and faces == 16 * 24
    assert 4 <= z < 9 and 14 <= y < 19 and 13 <= x < 19
    assert brightness > 100
    assert [pair for pair, *_ in points(volumes, [(3, 7), (3, 9), (7, 9)])] == [(3, 7), (7, 9)]
    assert points(volumes, [(3, 9)]) == []
    monkeypatch.setattr("ffn.assembly.contacts.MAX_GAP_NM", 10.0)
    assert points(volumes, [(3, 7)]) == []


def lists(cells):
    return [column.tolist() for column in cells]


@pytest.mark.parametrize("block_size", [(16, 24, 32), (5, 7, 9), (4, 24, 1)])
def test_blocks_find_what_the_whole_volume_finds(volumes, block_size):
    pairs = [(3, 7), (7, 9)]
    assert lists(contacts(volumes, BOX.blocks(block_size), pairs)) == lists(contacts(volumes, [BOX], pairs))


def at(*position, brightness=100.0, faces=1, pair=(1, 2)):
    return Cells(np.array([pair], np.uint64), np.array([position]), np.array([brightness]), np.array([faces]))


def test_the_brightest_place_of_a_cell_is_kept_with_the_faces_around_it():
    parts = [at(0, 0, 5, brightness=90.0, faces=3), at(8, 0, 5, brightness=120.0), at(2, 0, 5, brightness=120.0)]
    expected = lists(at(2, 0, 5, brightness=120.0, faces=5))
    assert lists(combined(parts, SIZE)) == lists(combined(parts[::-1], SIZE)) == expected
    places = [at(0, 24 * n, 0, faces=10**n) for n in range(4)]  # cells of 12 × 24 × 24 voxels
    claims = np.array([[1, 2, 0, 0, 0, 7], [1, 2, 0, 24, 24, 40], [1, 2, 24, 24, 0, 500], [1, 3, 0, 0, 0, 6000]])
    faces, overlap = around(combined(places, SIZE), claims, SIZE)
    assert faces.tolist() == [11, 111, 1110, 1100] and overlap.tolist() == [47, 47, 40, 0]


def test_points_are_brighter_than_all_others_around():
    places = [at(0, 24 * n, 0, brightness=value) for n, value in enumerate([9.0, 8.0, 7.0, 10.0, 6.0, 5.0, 5.0])]
    places.append(at(0, 24, 0, brightness=1.0, pair=(1, 3)))
    cells = combined(places, SIZE)

    row = Box((0, 0, 0), (1, 999, 1))

    def found(radius, box=row):
        rows = decision_points(cells, box, SIZE, radius)
        return [(tuple(cells.pairs[k].tolist()), int(cells.position_zyx[k, 1]) // 24) for k in rows]

    assert found(1) == [((1, 2), 3), ((1, 2), 0), ((1, 3), 1)]
    assert found(2) == [((1, 2), 3), ((1, 2), 0), ((1, 3), 1)]
    assert found(3) == [((1, 2), 3), ((1, 3), 1)]
    cut = [found(2, Box((0, y, 0), (1, y + 24, 1))) for y in range(0, 999, 24)]
    assert sorted(sum(cut, [])) == sorted(found(2))


def test_spread_measures_distance_in_nm():
    labels = np.zeros((7, 1, 7), np.uint64)
    labels[3, 0, 3] = 5
    near = spread(labels, (20.0, 10.0, 10.0), 20.0)
    assert near[:, 0, 3].tolist() == [0, 0, 5, 5, 5, 0, 0]
    assert near[3, 0].tolist() == [0, 5, 5, 5, 5, 5, 0]
    assert not spread(np.zeros_like(labels), SIZE, 20.0).any()


def test_components_are_looked_at_where_they_are(volumes):
    objects = Objects(np.array([(3, 3), (7, 3), (9, 4), (10, 4)]))
    assert np.unique(found_in(volumes, BOX, [], objects).pairs, axis=0).tolist() == [[3, 7]]
    found = found_in(volumes, BOX, [(3, 4)], objects)
    assert np.unique(found.pairs, axis=0).tolist() == [[3, 7], [7, 9]]
    is_last = (found.pairs == (7, 9)).all(axis=1)
    cell = np.array(cell_shape(SIZE))
    claims = np.array([(3, 4, *(found.position_zyx[is_last][0] // cell * cell), 60)])
    _, overlap = around(found, claims, SIZE, objects)
    assert overlap[is_last].max() == 60 and overlap[~is_last].max() == 0
