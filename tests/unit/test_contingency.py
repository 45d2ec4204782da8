import numpy as np
import pytest

from ffn import contingency
from ffn.contingency import count_pairs, merge_tables
from ffn.geometry import Box


def rows(table):
    return [*zip(table.truth.tolist(), table.segment.tolist(), table.voxels.tolist(), strict=True)]


@pytest.fixture
def volumes():
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 5, (6, 10, 14)).repeat(2, axis=2).astype(np.uint64) * 10**15
    return truth, rng.integers(0, 7, truth.shape).astype(np.int32)


def test_counts_equal_a_dictionary_of_voxels(volumes):
    truth, segmentation = volumes
    expected = {}
    for pair in zip(truth.ravel().tolist(), segmentation.ravel().tolist(), strict=True):
        expected[pair] = expected.get(pair, 0) + 1
    assert rows(count_pairs(truth, segmentation)) == sorted((t, s, n) for (t, s), n in expected.items())


@pytest.mark.parametrize("block", [(1, 1, 1), (4, 3, 5), (2, 10, 28), (7, 7, 7)])
@pytest.mark.parametrize("min_pending", [0, 7, 10**6])
def test_blocks_do_not_change_the_table(volumes, block, min_pending, monkeypatch):
    monkeypatch.setattr(contingency, "MIN_PENDING_PAIRS", min_pending)
    truth, segmentation = volumes
    cuts = [b.slices() for b in Box.from_shape(truth.shape).blocks(block)]
    merged = merge_tables(count_pairs(truth[cut], segmentation[cut]) for cut in cuts)
    assert rows(merged) == rows(count_pairs(truth, segmentation))
    assert merged.num_voxels == truth.size


@pytest.mark.parametrize("seed", range(6))
def test_random_blocks_give_the_whole_table(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(5, 30, 3).tolist())
    truth, segmentation = (rng.integers(0, 6, shape).astype(kind) for kind in (np.uint64, np.uint16))
    cuts = [b.slices() for b in Box.from_shape(shape).blocks(tuple(rng.integers(1, 12, 3).tolist()))]
    merged = merge_tables(count_pairs(truth[cut], segmentation[cut]) for cut in cuts)
    assert rows(merged) == rows(count_pairs(truth, segmentation))


def test_runs_are_the_voxels_in_order(volumes):
    runs = contingency.find_runs(*volumes)
    for labels, ids in zip(volumes, (runs.truth, runs.segment), strict=True):
        assert np.array_equal(np.repeat(ids, runs.lengths), labels.ravel())
    assert np.array_equal(runs.starts, np.cumsum(runs.lengths) - runs.lengths)


def test_ids_of_64_bits_stay_apart():
    ids = np.array([2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)
    assert rows(count_pairs(ids, ids)) == [(int(i), int(i), 1) for i in ids]


def test_counts_beyond_32_bits_add_up():
    table = count_pairs(np.ones(1, np.uint8), np.ones(1, np.uint8))
    huge = contingency.ContingencyTable(table.truth, table.segment, np.array([2**40]))
    assert rows(merge_tables([huge, huge, table])) == [(1, 1, 2**41 + 1)]


def test_nothing_gives_an_empty_table():
    assert rows(merge_tables([])) == []
    assert rows(count_pairs(np.zeros((0, 3, 4), np.uint64), np.zeros((0, 3, 4), np.uint64))) == []
