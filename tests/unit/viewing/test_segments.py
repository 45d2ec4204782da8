"""Sizes, bounding boxes and matches of segments, counted block by block."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing import segments
from ffn.viewing.segments import (
    Counts,
    Matches,
    SegmentCounter,
    block_segments,
    merge_counts,
    number_segments,
    sorted_points,
)


def random_labels(rng, box, ids=(0, 3, 7, 2**63 + 5)):
    return (
        np.array(ids, np.uint64)[rng.integers(0, len(ids), [-(-n // 4) for n in box.shape])]
        .repeat(4, 0)
        .repeat(4, 1)
        .repeat(4, 2)[tuple(slice(n) for n in box.shape)]
    )


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_any_size_give_the_result_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(9, 40, 3).tolist()), (5, -17, 300))
    labels, truth = random_labels(rng, box), random_labels(rng, box, (0, 11, 12))
    pom = rng.integers(0, 256, box.shape).astype(np.uint8) * (rng.random(box.shape) < 0.7)
    points = np.array([rng.integers(a, b, 30) for a, b in zip(box.start, box.stop, strict=True)]).T
    counter = SegmentCounter(
        lambda block: truth[block.slices(box.start)],
        sorted_points(points),
        lambda block: pom[block.slices(box.start)],
    )
    blocks = box.blocks(tuple(rng.integers(3, 20, 3).tolist()))
    records = [counter.count(block, labels[block.slices(box.start)]).arrays for block in blocks]
    counts = merge_counts(map(Counts.of, records))
    found = counts.segments
    for row, segment_id in enumerate(found.ids):
        inside = np.argwhere(labels == segment_id)
        assert found.voxels[row] == len(inside)
        assert found.start_zyx[row].tolist() == (inside.min(0) + box.start).tolist()
        assert found.stop_zyx[row].tolist() == (inside.max(0) + 1 + box.start).tolist()
    assert found.ids.tolist() == np.unique(labels[labels > 0]).tolist()
    assert np.array_equal(counts.ids_at_points(30), labels[tuple((points - box.start).T)])
    matches, means = counts.matches(), counts.mean_pom()
    for row, segment_id in enumerate(found.ids):
        bodies = np.bincount(truth[(labels == segment_id) & (truth > 0)].astype(int), minlength=13)
        assert matches.truth_ids[row] == bodies.argmax()
        assert matches.shares[row] == pytest.approx(bodies.max() / bodies.sum())
        assert means[row] == pytest.approx((pom[(labels == segment_id) & (pom > 0)] - 1.0).mean() / 254)


def test_many_segments_are_merged_now_and_then(monkeypatch):
    """Merging at every block would sort all segments every time."""
    merged, merge = [], segments.merge_segments
    monkeypatch.setattr(segments, "MAX_PENDING", 20)
    monkeypatch.setattr(segments, "ROWS_PER_PART", 1)
    monkeypatch.setattr(segments, "merge_segments", lambda parts: merged.append(len(parts)) or merge(parts))
    counter, parts = SegmentCounter(), []
    for z in range(50):
        labels = 1 + np.arange(10 * z, 10 * z + 10, dtype=np.uint64).reshape(1, 1, 10)
        parts.append(counter.count(Box((z, 0, 0), (z + 1, 1, 10)), labels))
    assert len(merge_counts(parts).segments.ids) == 500 and len(merged) < 10
    empty, rounds = counter.count(Box((0, 0, 0), (1, 1, 1)), np.zeros((1, 1, 1), np.uint64)), len(merged)
    merge_counts([empty] * 60)
    assert len(merged) > rounds + 1


def test_a_segment_without_a_probability_has_no_pom():
    labels = np.array([[[4, 4, 9, 9]]], np.uint64)
    counter = SegmentCounter(pom=lambda block: np.array([[[255, 0, 0, 0]]], np.uint8))
    assert counter.count(Box.from_shape((1, 1, 4)), labels).mean_pom().tolist() == [1, 0]


def test_a_block_of_background_has_no_segments():
    nothing = np.zeros((2, 3, 4), np.uint64)
    assert len(block_segments(nothing, Box.from_shape((2, 3, 4))).ids) == 0


def test_a_segment_without_labelled_voxels_matches_no_body():
    labels = np.array([[[4, 4, 9, 9]]], np.uint64)
    counter = SegmentCounter(lambda block: np.array([[[0, 3, 0, 0]]]))
    matches = counter.count(Box.from_shape((1, 1, 4)), labels).matches()
    assert matches.truth_ids.tolist() == [3, 0] and matches.shares.tolist() == [1, 0]


def test_the_box_of_several_segments_contains_all():
    labels = np.zeros((4, 5, 6), np.uint64)
    labels[0, 1, 2], labels[3, 2, 5] = 8, 9
    found = block_segments(labels, Box((10, 0, 0), (14, 5, 6)))
    assert found.box([8, 9, 77]) == Box((10, 1, 2), (14, 3, 6))
    assert found.box([77]) is None


def test_segments_are_numbered_in_the_given_order():
    labels = np.array([[[5, 0, 2**63, 8]]], np.uint64)
    assert number_segments(labels, np.array([5, 2**63], np.uint64)).tolist() == [[[1, 0, 2, 0]]]
    assert not number_segments(labels, np.empty(0, np.uint64)).any()


def test_a_volume_without_labels_matches_no_body():
    counter = SegmentCounter(lambda block: np.zeros(block.shape, np.uint64))
    labels = np.full((2, 3, 4), 5, np.uint64)
    assert counter.count(Box.from_shape((2, 3, 4)), labels).matches() == Matches(pytest.approx([0]), pytest.approx([0]))
