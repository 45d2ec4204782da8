"""The costliest errors are listed by what correcting them would save, and located in the piece that is wrong."""

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation.errors import Error, Scene, locate, worst_errors, worst_of_each_kind
from ffn.evaluation.scores import score
from ffn.geometry import Box

from .conftest import SIZE_ZYX_NM

IDS = np.arange(100, dtype=np.uint64)  # no body is in several components
BOX = Box((5, -3, 100), (13, 9, 120))


def places_of(errors, truth, segments, block=(4, 5, 6)):
    """Return the voxels of errors within the box, and those of the main parts across their gaps."""
    tables = [(one, count_pairs(*(v[one.slices(BOX.start)] for v in (truth, segments)))) for one in BOX.blocks(block)]
    reads = (lambda box, labels=labels: labels[box.slices(BOX.start)] for labels in (truth, segments))
    found = locate(errors, tables, Scene(*reads, BOX, SIZE_ZYX_NM))
    return [tuple(end and tuple(np.subtract(end, BOX.start).tolist()) for end in ends) for ends in found]


def entries_of(*volumes):
    worst = worst_errors(count_pairs(*volumes), IDS, 10)
    return [error.entry(*ends) for error, ends in zip(worst, places_of(worst, *volumes), strict=True)]


@pytest.fixture
def volumes():
    """Body 1 in two touching pieces and a far one; segment 50 over bodies 2 and 3."""
    truth, segments = np.zeros((2, *BOX.shape), np.uint64)
    truth[:, :4] = 1
    segments[:, :4, :10], segments[:, :4, 10:14], segments[2:4, 1:3, 18:] = 10, 11, 12
    truth[:, 6:9], truth[:, 9:] = 2, 3
    segments[:, 6:] = 50
    return truth, segments


def test_a_perfect_segmentation_has_no_errors(volumes):
    touching, far, merger = entries_of(*volumes)
    assert (touching["kind"], touching["truth_ids"], touching["segment_ids"]) == ("split", [1], [10, 11])
    assert touching["voxels"] == 8 * 4 * 4
    assert touching["position_zyx"][1:] in ([1, 10], [2, 10])
    assert touching["other_zyx"] == [*touching["position_zyx"][:2], 9]
    assert (far["segment_ids"], far["position_zyx"][2]) == ([10, 12], 18)  # the side that faces the main part
    assert far["other_zyx"] == [*far["position_zyx"][:2], 9], "within REACH_ZYX"
    assert (merger["kind"], merger["truth_ids"], merger["segment_ids"]) == ("merge", [2, 3], [50])
    assert merger["position_zyx"][1] == 9
    assert worst_errors(count_pairs(volumes[0], volumes[0]), IDS, 10) == []


def test_savings_are_what_the_corrected_segmentation_gains():
    rng = np.random.default_rng(5)
    truth, segments = rng.integers(0, 4, 2000), rng.integers(0, 5, 2000)
    before = score(count_pairs(truth, segments), "foreground")["voi_split"]
    error = worst_errors(count_pairs(truth, segments), IDS, 1)[0]
    mended = np.where((truth == error.owner) & (segments == error.piece), error.main, segments)
    assert before - score(count_pairs(truth, mended), "foreground")["voi_split"] == pytest.approx(error.voi)


def test_the_worst_of_each_kind_come_first(volumes):
    entries = entries_of(*volumes)
    assert [entry["name"] for entry in entries] == ["split-01", "split-02", "merge-01"]
    assert entries[0]["segment_ids"] == [10, 11]
    assert [entry["name"] for entry in worst_of_each_kind(entries, 1)] == ["split-01", "merge-01"]
    assert worst_of_each_kind(entries, 9) == entries and worst_of_each_kind(entries, 0) == []


def test_every_place_lies_in_the_piece(monkeypatch):
    monkeypatch.setattr("ffn.evaluation.errors.PART_ZYX", (3, 4, 5))
    monkeypatch.setattr("ffn.evaluation.errors.REACH_ZYX", (9, 12, 20))
    rng = np.random.default_rng(2)
    truth, segments = (rng.integers(0, 6, (4, 6, 10)).repeat(2, 0).repeat(2, 1).repeat(2, 2) for _ in "ts")
    worst = worst_errors(count_pairs(truth, segments), IDS, 10)
    for error, (place, other) in zip(worst, places_of(worst, truth, segments), strict=True):
        assert (truth[place], segments[place]) == error.ids(error.piece)
        assert (truth[other], segments[other]) == error.ids(error.main)


def test_the_near_side_is_nearest_in_nm_and_in_the_middle_of_it():
    truth, segments = np.ones(BOX.shape, np.uint64), np.zeros(BOX.shape, np.uint64)
    segments[0, :, :4] = 1
    segments[2, 3, 3] = segments[0, 3:8, 5:] = 2  # 2 sections of 30 nm away, and 2 voxels of 20 nm
    assert places_of([Error("split-01", "split", 1, 1, 2, 1, 0.1)], truth, segments, BOX.shape) == [
        ((0, 5, 5), (0, 5, 3))
    ]
