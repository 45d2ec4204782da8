"""Sizes, bounding boxes and matches of segments, counted block by block."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.viewing import segments
from ffn.viewing.segments import Counts, count_segments, merge_counts, number_segments


def random_labels(rng, box, ids=(0, 3, 7, 2**63 + 5)):
    small = np.array(ids, np.uint64)[rng.integers(0, len(ids), [-(-n // 4) for n in box.shape])]
    return small.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(slice(n) for n in box.shape)]


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_any_size_give_the_result_of_the_whole(seed):
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(9, 40, 3).tolist()), (5, -17, 300))
    labels, truth = random_labels(rng, box), random_labels(rng, box, (0, 11, 12))
    records = [
        count_segments(block, labels[block.slices(box.start)], lambda block: truth[block.slices(box.start)]).arrays
        for block in box.blocks(tuple(rng.integers(3, 20, 3).tolist()))
    ]
    counts = merge_counts(Counts.of(record.__getitem__) for record in records)
    found, (truth_ids, shares) = counts.segments, counts.matches()
    for row, segment_id in enumerate(found.ids):
        is_in = labels == segment_id
        inside = np.argwhere(is_in)
        assert found.voxels[row] == len(inside)
        assert found.start_zyx[row].tolist() == (inside.min(0) + box.start).tolist()
        assert found.stop_zyx[row].tolist() == (inside.max(0) + 1 + box.start).tolist()
        bodies = np.bincount(truth[is_in & (truth > 0)].astype(int), minlength=13)
        assert truth_ids[row] == bodies.argmax()
        assert shares[row] == pytest.approx(bodies.max() / bodies.sum())
    assert found.ids.tolist() == np.unique(labels[labels > 0]).tolist()


def test_many_segments_are_merged_now_and_then(monkeypatch):
    """Merging at every block would sort all segments every time."""
    merged, merge = [], segments._merged
    monkeypatch.setattr(segments, "MIN_PENDING", 20)
    monkeypatch.setattr(segments, "_merged", lambda parts: merged.append(len(parts)) or merge(parts))
    parts = [
        count_segments(Box((z, 0, 0), (z + 1, 1, 10)), np.arange(1, 11, dtype=np.uint64).reshape(1, 1, 10) + 10 * z)
        for z in range(50)
    ]
    merged.clear()  # of the blocks
    assert len(merge_counts(parts).segments.ids) == 500 and len(merged) < 10


def test_segments_without_labelled_voxels_match_no_body():
    labels, truth = np.array([[[4, 4, 9, 9]]], np.uint64), np.array([[[0, 3, 0, 0]]])
    counts = count_segments(Box.from_shape((1, 1, 4)), labels, lambda block: truth)
    assert [column.tolist() for column in counts.matches()] == [[3, 0], [1, 0]]


def test_the_box_of_several_segments_contains_all():
    labels = np.zeros((4, 5, 6), np.uint64)
    labels[0, 1, 2], labels[3, 2, 5] = 8, 9
    found = count_segments(Box((10, 0, 0), (14, 5, 6)), labels).segments
    assert found.box([8, 9, 77]) == Box((10, 1, 2), (14, 3, 6))
    assert found.box([77]) is None


def test_segments_are_numbered_in_the_given_order():
    labels = np.array([[[5, 0, 2**63, 8]]], np.uint64)
    assert number_segments(labels, np.array([5, 2**63], np.uint64)).tolist() == [[[1, 0, 2, 0]]]
    assert not number_segments(labels, np.empty(0, np.uint64)).any()
