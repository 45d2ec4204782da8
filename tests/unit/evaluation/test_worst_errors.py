import csv
import io

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation import error_places
from ffn.evaluation.bodies import bodies_csv
from ffn.evaluation.error_places import Parts, find_places
from ffn.evaluation.scores import score
from ffn.evaluation.worst_errors import error_entries, errors_csv, worst_errors
from ffn.geometry import Box

BOX = Box((5, -3, 100), (13, 9, 120))


@pytest.fixture
def volumes():
    """Body 1 in two touching pieces and a far one; segment 50 over bodies 2 and 3."""
    truth, segments = np.zeros((2, *BOX.shape), np.uint64)
    truth[:, :4] = 1
    segments[:, :4, :10], segments[:, :4, 10:14], segments[2:4, 1:3, 18:] = 10, 11, 12
    truth[:, 6:9], truth[:, 9:] = 2, 3
    segments[:, 6:] = 50
    return truth, segments


def reader(labels):
    return lambda box: labels[box.slices(BOX.start)]


def places_of(volumes, block=(4, 5, 6)):
    errors = worst_errors(count_pairs(*volumes), 10)
    return errors, find_places([e.parts for e in errors], *map(reader, volumes), BOX, block)


def test_errors_are_found_where_they_are(volumes):
    touching, far, merger = error_entries(*places_of(volumes))
    assert (touching["kind"], touching["truth_ids"], touching["segment_ids"]) == ("split", [1], [10, 11])
    assert touching["voxels"] == 8 * 4 * 4 and touching["touching"]
    assert touching["position_zyx"][2] == 110 and -3 <= touching["position_zyx"][1] < 1
    assert (far["segment_ids"], far["touching"]) == ([10, 12], False)
    assert far["position_zyx"][2] == 118  # the side of the piece that faces the main part
    assert (merger["kind"], merger["truth_ids"], merger["segment_ids"]) == ("merge", [2, 3], [50])
    assert merger["position_zyx"][1] in (5, 6)


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


def test_mending_the_only_error_saves_all_of_the_voi():
    truth, segments = np.repeat([1, 2], [60, 40]), np.repeat([5, 6, 7], [45, 15, 40])
    (error,) = worst_errors(count_pairs(truth, segments), 5)
    assert error.parts == Parts("split", 1, 5, 6)
    assert error.voi == pytest.approx(score(count_pairs(truth, segments), "foreground")["voi"])


def test_savings_are_what_a_mended_segmentation_gains():
    rng = np.random.default_rng(5)
    truth, segments = rng.integers(0, 4, 2000), rng.integers(0, 5, 2000)
    before = score(count_pairs(truth, segments), "foreground")["voi_split"]
    error = worst_errors(count_pairs(truth, segments), 1)[0]
    piece = (truth == error.parts.owner) & (segments == error.parts.piece)
    mended = np.where(piece, error.parts.main, segments)
    assert before - score(count_pairs(truth, mended), "foreground")["voi_split"] == pytest.approx(error.voi)


def test_no_errors_no_places(volumes):
    truth = volumes[0]
    assert worst_errors(count_pairs(truth, truth), 10) == []
    assert find_places([], reader(truth), reader(truth), BOX, (4, 4, 4)) == []
    assert worst_errors(count_pairs(*volumes), 0) == []


def test_the_csv_has_a_row_for_each_error(volumes):
    entries = error_entries(*places_of(volumes))
    rows = list(csv.DictReader(io.StringIO(errors_csv(entries))))
    assert [row["kind"] for row in rows] == ["split", "split", "merge"]
    assert [row["name"] for row in rows] == ["split-01", "split-02", "merge-01"]
    assert rows[0]["segment_ids"] == "10 11" and int(rows[0]["x"]) == 110


def test_shares_of_all_bodies_add_up(volumes):
    table = count_pairs(*volumes)
    rows = list(csv.DictReader(io.StringIO(bodies_csv(table))))
    scores = score(table, "foreground")
    for kind, part in (("truth", "voi_split"), ("segment", "voi_merge")):
        own = [row for row in rows if row["kind"] == kind]
        assert sum(float(row["voi"]) for row in own) == pytest.approx(scores[part], rel=1e-4)
        assert sum(float(row["share"]) for row in own) == pytest.approx(1, rel=1e-3)
    assert [row["id"] for row in rows if row["kind"] == "truth"] == ["1", "2", "3"]
    assert {row["id"]: row["parts"] for row in rows if row["kind"] == "segment"}["50"] == "2"
