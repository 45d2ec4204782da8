import numpy as np
import pytest

from ffn import contingency
from ffn.contingency import RowLookup, count_ids, count_pairs, find_runs, largest_parts, merge_tables
from ffn.geometry import Box


def rows(table):
    return [*zip(table.a.tolist(), table.b.tolist(), table.voxels.tolist(), strict=True)]


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
    monkeypatch.setattr(contingency, "MIN_PENDING_ROWS", min_pending)
    truth, segmentation = volumes
    cuts = [b.slices() for b in Box.from_shape(truth.shape).blocks(block)]
    merged = merge_tables(count_pairs(truth[cut], segmentation[cut]) for cut in cuts)
    assert rows(merged) == rows(count_pairs(truth, segmentation))
    assert merged.num_voxels == truth.size


def test_runs_are_the_voxels_in_order_and_end_with_rows(volumes):
    starts, lengths = find_runs(*volumes)
    for labels in volumes:
        assert np.array_equal(np.repeat(labels.ravel()[starts], lengths), labels.ravel())
    assert np.array_equal(starts, np.cumsum(lengths) - lengths)
    pairs = np.stack([labels.ravel()[starts] for labels in volumes]).astype(object)
    assert (pairs[:, 1:] != pairs[:, :-1]).any(axis=0).all()  # no run can be longer
    labels = np.array([[[4, 4, 7], [7, 7, 7]], [[7, 0, 0], [0, 0, 0]]])
    assert find_runs(labels)[0].tolist() == [0, 2, 7]
    starts, lengths = find_runs(labels, within_rows=True)
    assert starts.tolist() == [0, 2, 3, 6, 7, 9] and lengths.tolist() == [2, 1, 3, 1, 2, 3]
    assert [part.size for part in find_runs(np.zeros((0, 4, 0)), within_rows=True)] == [0, 0]


def test_ids_are_counted_in_the_order_of_their_first_voxels(volumes):
    ids, voxels = count_ids(volumes[0][:, ::-1])
    expected = dict.fromkeys(volumes[0][:, ::-1].ravel().tolist(), 0)
    for one in volumes[0].ravel().tolist():
        expected[one] += 1
    assert [*zip(ids.tolist(), voxels.tolist(), strict=True)] == list(expected.items())
    assert [part.size for part in count_ids(np.zeros((0, 3), np.uint8))] == [0, 0]


def test_the_foreground_and_the_largest_parts(volumes):
    table = count_pairs(*volumes)
    assert rows(table.foreground()) == [row for row in rows(table) if row[0] and row[1]]
    owners, parts, sizes = np.array([[9, 1, 5], [2, 3, 1], [9, 2, 5], [2, 1, 4], [4, 7, 1]]).T
    assert largest_parts(owners, parts, sizes).tolist() == [3, 4, 0]
    assert largest_parts(*(np.zeros(0, int) for _ in range(3))).tolist() == []


@pytest.mark.parametrize("num_columns", [1, 2, 3])
def test_rows_are_looked_up_as_in_a_dictionary(num_columns):
    rng = np.random.default_rng(num_columns)
    table = np.unique(rng.integers(0, 7, (40, num_columns)), axis=0).astype(np.uint64)
    table = rng.permutation(table) * np.uint64(2**61)
    asked = rng.integers(0, 8, (200, num_columns)).astype(np.uint64) * np.uint64(2**61)
    number = {tuple(row): i for i, row in enumerate(table.tolist())}
    assert RowLookup(*table.T).find(*asked.T).tolist() == [number.get(tuple(row), -1) for row in asked.tolist()]


def test_ids_of_64_bits_stay_apart_and_large_counts_add_up():
    lookup = RowLookup(np.array([2**60 + 1], np.int64))
    assert lookup.find(np.array([2**60, 2**60 + 1], np.uint64)).tolist() == [-1, 0]
    assert lookup.find(np.array([2**60, 2**60 + 1], np.int64)).tolist() == [-1, 0]
    ids = np.array([2**63, 2**63 + 1, 2**64 - 1], dtype=np.uint64)
    assert rows(count_pairs(ids, ids)) == [(int(i), int(i), 1) for i in ids]
    table = count_pairs(np.ones(1, np.uint8), np.ones(1, np.uint8))
    huge = contingency.ContingencyTable(table.a, table.b, np.array([2**40]))
    assert rows(merge_tables([huge, huge, table])) == [(1, 1, 2**41 + 1)]


def test_nothing_gives_an_empty_table():
    empty = np.zeros(0, np.uint64)
    assert RowLookup(empty, empty).find(np.array([1, 2]), np.array([3, 4])).tolist() == [-1, -1]
    assert RowLookup(np.array([1])).find(empty).tolist() == []
    assert rows(merge_tables([])) == []
    assert rows(count_pairs(np.zeros((0, 3, 4), np.uint64), np.zeros((0, 3, 4), np.uint64))) == []
