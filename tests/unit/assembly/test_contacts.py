"""Contacts between segments: which segments touch, how much, and where the image is brightest."""

import numpy as np
import pytest

from ffn.assembly.contacts import Contact, Scene, add_contacts, decision_points, find_contacts, spread, with_overlaps
from ffn.assembly.tables import ALONE, Objects
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
    return add_contacts((c for block in blocks for c in found_in(volumes, block, pairs)), SIZE)


def points(volumes, pairs):
    found = with_overlaps(contacts(volumes, [BOX], pairs), NONE, SIZE)
    return decision_points(found, BOX, radius=2)


def test_the_decision_point_is_the_brightest_place_between_near_pairs(volumes, monkeypatch):
    (contact,) = points(volumes, [(3, 7)])
    z, y, x = np.subtract(contact.position_zyx, BOX.start)
    assert contact.pair == (3, 7) and contact.faces == 16 * 24
    assert 4 <= z < 9 and 14 <= y < 19 and 13 <= x < 19
    assert contact.brightness > 100
    assert [c.pair for c in points(volumes, [(3, 7), (3, 9), (7, 9)])] == [(3, 7), (7, 9)]
    assert points(volumes, [(3, 9)]) == []
    monkeypatch.setattr("ffn.assembly.contacts.MAX_GAP_NM", 10.0)
    assert points(volumes, [(3, 7)]) == []


@pytest.mark.parametrize("block_size", [(16, 24, 32), (5, 7, 9), (4, 24, 1)])
def test_blocks_find_what_the_whole_volume_finds(volumes, block_size):
    pairs = [(3, 7), (7, 9)]
    assert contacts(volumes, BOX.blocks(block_size), pairs) == contacts(volumes, [BOX], pairs)


def at(*position, brightness=100.0, faces=1, pair=(1, 2)):
    return Contact(*pair, position, brightness, faces)


def test_the_brightest_place_of_a_cell_is_kept_with_the_faces_around_it():
    parts = [at(0, 0, 5, brightness=90.0, faces=3), at(8, 0, 5, brightness=120.0), at(2, 0, 5, brightness=120.0)]
    expected = {(1, 2): {(0, 0, 0): at(2, 0, 5, brightness=120.0, faces=5)}}
    assert add_contacts(parts, SIZE) == add_contacts(parts[::-1], SIZE) == expected
    places = [at(0, 24 * n, 0, faces=10**n) for n in range(4)]  # cells of 12 × 24 × 24 voxels
    claims = np.array([[1, 2, 0, 0, 0, 7], [1, 2, 0, 24, 24, 40], [1, 2, 24, 24, 0, 500], [1, 3, 0, 0, 0, 6000]])
    counted = with_overlaps(add_contacts(places, SIZE), claims, SIZE)[1, 2].values()
    assert [(c.faces, c.overlap) for c in counted] == [(11, 47), (111, 47), (1110, 40), (1100, 0)]


def test_points_are_brighter_than_all_others_around():
    places = [at(0, 24 * n, 0, brightness=value) for n, value in enumerate([9.0, 8.0, 7.0, 10.0, 6.0, 5.0, 5.0])]
    places.append(at(0, 24, 0, brightness=1.0, pair=(1, 3)))
    cells = add_contacts(places, SIZE)

    row = Box((0, 0, 0), (1, 999, 1))

    def found(radius, box=row):
        return [(c.pair, c.position_zyx[1] // 24) for c in decision_points(cells, box, radius)]

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
    assert {contact.pair for contact in found_in(volumes, BOX, [], objects)} == {(3, 7)}
    found = found_in(volumes, BOX, [(3, 4)], objects)
    assert {contact.pair for contact in found} == {(3, 7), (7, 9)}
    last = next(contact for contact in found if contact.pair == (7, 9))
    cell = np.array(cell_shape(SIZE))
    claims = np.array([(3, 4, *(last.position_zyx // cell * cell), 60)])
    known = with_overlaps(add_contacts(found, SIZE), claims, SIZE, objects)
    assert max(contact.overlap for contact in known[7, 9].values()) == 60
    assert max(contact.overlap for contact in known[3, 7].values()) == 0
