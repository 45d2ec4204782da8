"""The costliest errors are listed by what correcting them would save, and located in the piece that is wrong."""

import csv
import io

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation import errors
from ffn.evaluation.errors import (
    Parts,
    Search,
    error_entries,
    errors_csv,
    find_places,
    worst_errors,
    worst_of_each_kind,
)
from ffn.evaluation.scores import score
from ffn.geometry import Box

from .conftest import SIZE_ZYX_NM

BOX = Box((5, -3, 100), (13, 9, 120))


def tables_of(truth, segmentation, block_zyx):
    """Iterate over blocks and their pairs of body and segment."""
    for block in BOX.blocks(block_zyx):
        part = block.slices(BOX.start)
        yield block, count_pairs(truth[part], segmentation[part])


def search(*volumes):
    truth, segmentation = (lambda box, labels=labels: labels[box.slices(BOX.start)] for labels in volumes)
    return Search(truth, segmentation, BOX, (3, 5, 6), SIZE_ZYX_NM)


def places_of(volumes, block=(4, 5, 6)):
    """Return the worst errors of truth and segments, and their places."""
    worst = worst_errors(count_pairs(*volumes), 10)
    return worst, find_places([e.parts for e in worst], tables_of(*volumes, block), search(*volumes))


@pytest.fixture
def volumes():
    """Body 1 in two touching pieces and a far one; segment 50 over bodies 2 and 3."""
    truth, segments = np.zeros((2, *BOX.shape), np.uint64)
    truth[:, :4] = 1
    segments[:, :4, :10], segments[:, :4, 10:14], segments[2:4, 1:3, 18:] = 10, 11, 12
    truth[:, 6:9], truth[:, 9:] = 2, 3
    segments[:, 6:] = 50
    return truth, segments


def test_errors_have_their_objects_and_places(volumes):
    touching, far, merger = error_entries(*places_of(volumes))
    assert (touching["kind"], touching["truth_ids"], touching["segment_ids"]) == ("split", [1], [10, 11])
    assert touching["voxels"] == 8 * 4 * 4 and touching["touching"]
    assert touching["position_zyx"][2] == 110 and -3 <= touching["position_zyx"][1] < 1
    assert (far["segment_ids"], far["touching"]) == ([10, 12], False)
    assert far["position_zyx"][2] == 118  # the side of the piece that faces the main part
    assert (merger["kind"], merger["truth_ids"], merger["segment_ids"]) == ("merge", [2, 3], [50])
    assert merger["position_zyx"][1] in (5, 6)


def test_savings_are_what_the_corrected_segmentation_gains():
    rng = np.random.default_rng(5)
    truth, segments = rng.integers(0, 4, 2000), rng.integers(0, 5, 2000)
    before = score(count_pairs(truth, segments), "foreground")["voi_split"]
    error = worst_errors(count_pairs(truth, segments), 1)[0]
    piece = (truth == error.parts.owner) & (segments == error.parts.piece)
    mended = np.where(piece, error.parts.main, segments)
    assert before - score(count_pairs(truth, mended), "foreground")["voi_split"] == pytest.approx(error.voi)


def test_a_perfect_segmentation_has_no_errors(volumes):
    assert worst_errors(count_pairs(volumes[0], volumes[0]), 10) == []


def test_the_csv_has_a_row_for_each_error(volumes):
    entries = error_entries(*places_of(volumes))
    rows = list(csv.DictReader(io.StringIO(errors_csv(entries))))
    assert [row["kind"] for row in rows] == ["split", "split", "merge"]
    assert [row["name"] for row in rows] == ["split-01", "split-02", "merge-01"]
    assert rows[0]["segment_ids"] == "10 11" and int(rows[0]["x"]) == 110


def test_the_worst_of_each_kind_come_first(volumes):
    entries = error_entries(*places_of(volumes))
    assert [entry["name"] for entry in worst_of_each_kind(entries, 1)] == ["split-01", "merge-01"]
    assert worst_of_each_kind(entries, 9) == entries and worst_of_each_kind(entries, 0) == []


def test_every_position_lies_in_the_piece():
    rng = np.random.default_rng(2)
    volumes = [rng.integers(0, 6, (4, 6, 10)).repeat(2, 0).repeat(2, 1).repeat(2, 2).astype(np.uint64) for _ in "ts"]
    worst, places = places_of(volumes)
    for error, place in zip(worst, places, strict=True):
        z, y, x = np.array(place.position_zyx) - BOX.start
        found = [volume[z, y, x] for volume in volumes]
        assert found == ([error.parts.owner, error.parts.piece][:: 1 if error.parts.kind == "split" else -1])


@pytest.mark.parametrize("seed", range(4))
def test_blocks_do_not_change_the_places(seed, monkeypatch):
    monkeypatch.setattr(errors, "SAMPLE_SIZE", 7)
    rng = np.random.default_rng(seed)
    volumes = [rng.integers(0, 5, (4, 12, 10)).repeat(2, 0).repeat(2, 2).astype(np.uint64) for _ in "ts"]
    whole = places_of(volumes, BOX.shape)
    assert all(places_of(volumes, tuple(rng.integers(1, 9, 3).tolist())) == whole for _ in range(5))


def test_a_contact_is_located_in_its_middle_and_a_distant_piece_at_its_near_side():
    truth, segments = np.ones((2, *BOX.shape), np.uint64)
    segments[:, :, 10:15], segments[:, :, 15:] = 2, 0
    segments[2:4, 2:4, 18:] = 3
    parts = [Parts("split", 1, 1, 2), Parts("split", 1, 1, 3)]
    touching, far = find_places(parts, tables_of(truth, segments, (4, 5, 6)), search(truth, segments))
    assert touching.touching and touching.position_zyx[2] == BOX.start[2] + 10
    assert not far.touching and far.position_zyx[2] == BOX.start[2] + 18
    middle = np.add(BOX.start, BOX.stop) / 2
    assert np.abs(np.subtract(touching.position_zyx, middle)[:2]).max() <= 1


def test_the_near_side_is_nearest_in_nm():
    truth, segments = np.ones(BOX.shape, np.uint64), np.zeros(BOX.shape, np.uint64)
    segments[0, :, :4] = 1
    segments[2, 3, 3] = segments[0, 3, 7] = 2  # 2 sections of 40 nm away, and 4 voxels of 10 nm
    look = search(truth, segments)._replace(voxel_size_zyx_nm=(40.0, 10.0, 10.0))
    (place,) = find_places([Parts("split", 1, 1, 2)], tables_of(truth, segments, (4, 5, 6)), look)
    assert np.subtract(place.position_zyx, BOX.start).tolist() == [0, 3, 7]


def test_only_blocks_that_can_hold_an_error_are_read():
    """The contact lies between blocks: the one with the piece is read, with a layer around it."""
    truth, segments = np.ones((2, *BOX.shape), np.uint64)
    segments[:, :, 12:] = 2
    seen = []

    def read(box):
        seen.append(box)
        return truth[box.slices(BOX.start)]

    look = search(truth, segments)._replace(truth=read, block_size_zyx=(8, 12, 6))
    (place,) = find_places([Parts("split", 1, 1, 2)], tables_of(truth, segments, (8, 12, 6)), look)
    assert place.touching and place.position_zyx[2] == BOX.start[2] + 12
    assert [str(box) for box in seen] == ["5:13,-3:9,111:119"]
