"""The costliest errors are listed by what correcting them would save."""

import csv
import io

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation.error_places import Parts
from ffn.evaluation.scores import score
from ffn.evaluation.worst_errors import error_entries, errors_csv, worst_errors, worst_of_each_kind

from .conftest import BOX, places_of


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


def test_correcting_the_only_error_saves_all_of_the_voi():
    truth, segments = np.repeat([1, 2], [60, 40]), np.repeat([5, 6, 7], [45, 15, 40])
    (error,) = worst_errors(count_pairs(truth, segments), 5)
    assert error.parts == Parts("split", 1, 5, 6)
    assert error.voi == pytest.approx(score(count_pairs(truth, segments), "foreground")["voi"])


def test_savings_are_what_the_corrected_segmentation_gains():
    rng = np.random.default_rng(5)
    truth, segments = rng.integers(0, 4, 2000), rng.integers(0, 5, 2000)
    before = score(count_pairs(truth, segments), "foreground")["voi_split"]
    error = worst_errors(count_pairs(truth, segments), 1)[0]
    piece = (truth == error.parts.owner) & (segments == error.parts.piece)
    mended = np.where(piece, error.parts.main, segments)
    assert before - score(count_pairs(truth, mended), "foreground")["voi_split"] == pytest.approx(error.voi)


def test_a_perfect_segmentation_has_no_errors(volumes):
    truth = volumes[0]
    assert worst_errors(count_pairs(truth, truth), 10) == []
    assert worst_errors(count_pairs(*volumes), 0) == []


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
