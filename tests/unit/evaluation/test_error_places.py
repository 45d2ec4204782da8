"""Errors are located in the piece that is wrong, whatever the blocks."""

import numpy as np
import pytest

from ffn.evaluation import error_places
from ffn.evaluation.error_places import Parts, find_places

from .conftest import BOX, SIZE_ZYX_NM, places_of, reader, tables_of


def test_every_position_lies_in_the_piece():
    rng = np.random.default_rng(2)
    volumes = [rng.integers(0, 6, (4, 6, 10)).repeat(2, 0).repeat(2, 1).repeat(2, 2).astype(np.uint64) for _ in "ts"]
    errors, places = places_of(volumes)
    for error, place in zip(errors, places, strict=True):
        z, y, x = np.array(place.position_zyx) - BOX.start
        found = [volume[z, y, x] for volume in volumes]
        assert found == ([error.parts.owner, error.parts.piece][:: 1 if error.parts.kind == "split" else -1])


@pytest.mark.parametrize("seed", range(4))
def test_blocks_do_not_change_the_places(seed, monkeypatch):
    monkeypatch.setattr(error_places, "SAMPLE_SIZE", 7)
    rng = np.random.default_rng(seed)
    volumes = [rng.integers(0, 5, (4, 12, 10)).repeat(2, 0).repeat(2, 2).astype(np.uint64) for _ in "ts"]
    whole = places_of(volumes, BOX.shape)
    assert all(places_of(volumes, tuple(rng.integers(1, 9, 3).tolist())) == whole for _ in range(5))


def test_without_errors_there_are_no_places():
    assert find_places([], None, None, BOX, [], (4, 4, 4), SIZE_ZYX_NM) == []


def test_a_contact_is_located_in_its_middle_and_a_distant_piece_at_its_near_side():
    truth, segments = np.ones((2, *BOX.shape), np.uint64)
    segments[:, :, 10:15], segments[:, :, 15:] = 2, 0
    segments[2:4, 2:4, 18:] = 3
    parts = [Parts("split", 1, 1, 2), Parts("split", 1, 1, 3)]
    tables = tables_of(truth, segments, BOX, (4, 5, 6))
    touching, far = find_places(parts, reader(truth), reader(segments), BOX, tables, (4, 5, 6), SIZE_ZYX_NM)
    assert touching.touching and touching.position_zyx[2] == BOX.start[2] + 10
    assert not far.touching and far.position_zyx[2] == BOX.start[2] + 18
    middle = np.add(BOX.start, BOX.stop) / 2
    assert np.abs(np.subtract(touching.position_zyx, middle)[:2]).max() <= 1


def test_the_near_side_is_nearest_in_nm():
    truth, segments = np.ones(BOX.shape, np.uint64), np.zeros(BOX.shape, np.uint64)
    segments[0, :, :4] = 1
    segments[2, 3, 3] = segments[0, 3, 7] = 2  # 2 sections of 40 nm away, and 4 voxels of 10 nm
    tables = tables_of(truth, segments, BOX, (4, 5, 6))
    parts = [Parts("split", 1, 1, 2)]
    (place,) = find_places(parts, reader(truth), reader(segments), BOX, tables, (4, 5, 6), (40.0, 10.0, 10.0))
    assert np.subtract(place.position_zyx, BOX.start).tolist() == [0, 3, 7]


def test_only_blocks_that_can_hold_an_error_are_read():
    """The contact lies between blocks: its faces are in the nearer one, which is read with the next layer."""
    truth, segments = np.ones((2, *BOX.shape), np.uint64)
    segments[:, :, 12:] = 2
    seen = []

    def read(box):
        seen.append(box)
        return truth[box.slices(BOX.start)]

    tables = tables_of(truth, segments, BOX, (8, 12, 6))
    (place,) = find_places([Parts("split", 1, 1, 2)], read, reader(segments), BOX, tables, (8, 12, 6), SIZE_ZYX_NM)
    assert place.touching and place.position_zyx[2] == BOX.start[2] + 12
    assert [str(box) for box in seen] == ["5:13,-3:9,106:113"]
