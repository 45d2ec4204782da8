"""Contacts between segments: which segments touch, how much, and where the image is brightest."""

import numpy as np
import pytest

from ffn.assembly.contacts import Contact, find_contacts, merge_contacts, spread
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write

BOX = Box((10, 20, 30), (26, 44, 62))
SIZE = (20.0, 10.0, 10.0)


@pytest.fixture
def volumes(tmp_path):
    """Segments 3 and 7 along x with a dark gap that is bright in one place, and 9 after another gap behind 7."""
    labels = np.zeros(BOX.shape, np.uint64)
    labels[:, :, :14], labels[:, :, 18:26], labels[:, :, 30:] = 3, 7, 9
    image = np.full(BOX.shape, 150, np.uint8)
    image[:, :, 13:19] = image[:, :, 25:31] = 50
    image[4:9, 14:19, 13:19] = 150
    specs = (write(tmp_path / f"{n}.h5", v, BOX.start, SIZE) for n, v in (("labels", labels), ("image", image)))
    with open_volume(next(specs)) as one, open_volume(next(specs)) as other:
        yield one, other


def contacts(volumes, blocks, pairs, max_distance=3.0, max_points=1):
    pairs = np.array(pairs, np.uint64)
    found = (c for block in blocks for c in find_contacts(*volumes, block, pairs, max_distance))
    return merge_contacts(found, max_points, SIZE)


def test_the_decision_point_is_the_brightest_place_between_two_segments(volumes):
    (contact,) = contacts(volumes, [BOX], [(3, 7)])
    z, y, x = np.subtract(contact.position_zyx, BOX.start)
    assert contact.pair == (3, 7) and contact.faces == 16 * 24
    assert 4 <= z < 9 and 14 <= y < 19 and 13 <= x < 19
    assert contact.brightness > 100


def test_only_given_pairs_that_are_near_enough_are_found(volumes):
    assert [c.pair for c in contacts(volumes, [BOX], [(3, 7), (3, 9), (7, 9)])] == [(3, 7), (7, 9)]
    assert contacts(volumes, [BOX], [(3, 7)], max_distance=1.0) == []
    assert contacts(volumes, [BOX], [(3, 9)]) == []


@pytest.mark.parametrize("max_points", [1, 3])
@pytest.mark.parametrize("block_size", [(16, 24, 32), (5, 7, 9), (4, 24, 1)])
def test_blocks_find_what_the_whole_volume_finds(volumes, block_size, max_points):
    pairs = [(3, 7), (7, 9)]
    parts = contacts(volumes, BOX.blocks(block_size), pairs, max_points=max_points)
    assert parts == contacts(volumes, [BOX], pairs, max_points=max_points)


def at(*position, brightness, faces=1, pair=(1, 2)):
    return Contact(*pair, position, brightness, faces)


def test_the_brightest_point_is_kept_whatever_the_order():
    parts = [at(0, 0, 5, brightness=90.0, faces=3), at(8, 0, 5, brightness=120.0), at(2, 0, 5, brightness=120.0)]
    expected = [at(2, 0, 5, brightness=120.0, faces=5)]
    assert merge_contacts(parts, 3, SIZE) == merge_contacts(parts[::-1], 3, SIZE) == expected


def test_points_lie_apart_and_are_limited_in_number():
    near, far = at(0, 23, 0, brightness=110.0), at(0, 60, 0, brightness=100.0)
    parts = [at(0, 24, 0, brightness=120.0), near, far, at(13, 24, 0, brightness=90.0)]
    positions = [c.position_zyx for c in merge_contacts(parts, 9, SIZE)]
    assert positions == [
        (0, 24, 0),
        (0, 60, 0),
        (13, 24, 0),
    ]  # 12 sections are as thick as 24 voxels
    assert [c.position_zyx for c in merge_contacts(parts, 2, SIZE)] == [(0, 24, 0), (0, 60, 0)]
    assert {c.faces for c in merge_contacts(parts, 9, SIZE)} == {4}


def test_spread_measures_distance_in_the_smallest_side():
    labels = np.zeros((7, 1, 7), np.uint64)
    labels[3, 0, 3] = 5
    near = spread(labels, (20.0, 10.0, 10.0), 2.0)
    assert near[:, 0, 3].tolist() == [0, 0, 5, 5, 5, 0, 0]
    assert near[3, 0].tolist() == [0, 5, 5, 5, 5, 5, 0]
    assert not spread(np.zeros_like(labels), SIZE, 2.0).any()
