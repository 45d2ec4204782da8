"""The consensus keeps together what both segmentations keep together, whatever the blocks."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from ffn.assembly.config import ConsensusConfig
from ffn.assembly.consensus import candidates, consensus, fragment_ids
from ffn.assembly.contacts import ALONE, spread
from ffn.cli import main
from ffn.contingency import ContingencyTable, count_pairs, rows_of
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume, read_table

from ...jobs import require_same_files, running
from ..volumes import read, write

BOX = Box((4, -3, 10), (17, 20, 41))
SIZE = (10.0, 10.0, 20.0)


def random_labels(rng, ids):
    """Return blobs of a few voxels with arbitrary ids; some are background."""
    coarse = rng.integers(0, len(ids) + 2, [n // 4 + 1 for n in BOX.shape])
    fine = coarse.repeat(4, 0).repeat(4, 1).repeat(4, 2)[tuple(map(slice, BOX.shape))]
    return np.array([0, 0, *ids], np.uint64)[fine]


def by_definition(a, b, min_size):
    """Apply the definition pair by pair."""
    out, next_id = np.zeros_like(a), int(a.max()) + 1
    for segment_id in np.unique(a[a != 0]):
        inside = a == segment_id
        others, sizes = np.unique(b[inside], return_counts=True)
        largest = others[np.argmax(sizes)]
        for other, size in zip(others, sizes, strict=True):
            if size >= min_size:
                out[inside & (b == other)] = segment_id if other == largest else next_id
                next_id += other != largest
    return out


@pytest.mark.parametrize("seed", range(4))
def test_the_result_equals_the_definition_for_any_blocks(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    a = random_labels(rng, rng.choice(2**62, 5).astype(np.uint64))
    b = random_labels(rng, np.arange(1, 4)).astype(np.int32)
    config = ConsensusConfig(min_fragment_um3=0.0004)
    monkeypatch.setattr("ffn.assembly.consensus.PART_ZYX", tuple(rng.integers(3, 40, 3).tolist()))
    out = f"{tmp_path}/out.zarr"
    consensus(
        write(tmp_path / "a.zarr", a, BOX.start, SIZE), write(tmp_path / "b.zarr", b, BOX.start, SIZE), out, config
    )
    with open_volume(out) as volume:
        assert (volume.box, volume.dtype, volume.voxel_size_zyx_nm) == (BOX, np.uint64, SIZE)
        found = volume.read()
    assert np.array_equal(found, by_definition(a, b, 200))
    assert len(np.unique(found)) > 6  # some were split
    assert ((found == 0) & (a != 0)).any()  # some fragments were small


def test_jobs_and_kills_do_not_show(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    a, b = random_labels(rng, rng.choice(2**62, 5).astype(np.uint64)), random_labels(rng, np.arange(1, 4))
    origins = np.array([[int(i), *BOX.start, 40, 1] for i in np.unique(a[a > 0])])
    tables = {"origins": origins, "overlaps": np.array([[*np.unique(a[a > 0])[:2].astype(int), *BOX.start, 70]])}
    specs = [write(tmp_path / "a.zarr", a, BOX.start, SIZE, tables), write(tmp_path / "b.zarr", b, BOX.start, SIZE)]
    command = ["consensus", *specs, "--min-fragment-um3", "0.0004"]
    whole, one = f"{tmp_path}/whole.zarr", f"{tmp_path}/one/c.zarr"
    assert main([*command, "--out", whole]) == 0
    monkeypatch.setattr("ffn.assembly.consensus.PART_ZYX", (7, 9, 11))
    monkeypatch.setattr("ffn.io.shards.CHUNK", 8)
    monkeypatch.setattr("ffn.io.shards.MAX_SHARD", 16)
    jobs = ["count 2-of-2", "count 1-of-2", "count", "3-of-3", "1-of-3", "2-of-3", "write"]
    require_same_files(running(command, "c.zarr"), tmp_path, jobs, blocks_between_kills=3)
    assert np.array_equal(read(one), read(whole)) and np.array_equal(read(one), by_definition(a, b, 200))
    for table in ("origins", "overlaps"):
        assert np.array_equal(read_table(one, table), read_table(whole, table)) and len(read_table(one, table))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([5, 5, 5, 5], [1, 1, 2, 2], [5, 5, 6, 6]),  # equal fragments: the smaller b keeps the id
        ([5, 5, 5, 5], [0, 0, 0, 2], [5, 5, 5, 0]),  # voxels that only a has are kept; one voxel is too few
        ([0, 0, 5, 5], [3, 3, 3, 3], [0, 0, 5, 5]),  # background of a stays
        ([5, 5, 9, 9, 5, 5, 5], [1, 1, 1, 1, 4, 4, 4], [10, 10, 9, 9, 5, 5, 5]),
        ([5, 2, 2], [5, 1, 1], [0, 2, 2]),
        ([], [], []),
    ],
)
def test_ids_follow_the_rules(a, b, expected):
    a, b = np.array(a, np.uint64), np.array(b, np.uint64)
    table = count_pairs(a, b)
    by_pair = dict(zip(map(tuple, rows_of(table)[:, :2].tolist()), fragment_ids(table, 2).tolist(), strict=True))
    assert [by_pair[pair] for pair in zip(a.tolist(), b.tolist(), strict=True)] == expected


def test_boxes_that_differ_are_refused(tmp_path):
    labels = np.ones(BOX.shape, np.uint64)
    specs = write(tmp_path / "a.zarr", labels, BOX.start), write(tmp_path / "b.zarr", labels, (4, -3, 11))
    with pytest.raises(VolumeError, match="b.zarr: covers 4:17,-3:20,11:42"):
        consensus(*specs, f"{tmp_path}/out.zarr", ConsensusConfig())
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("first", [True, False])
def test_ids_that_tables_cannot_hold_are_refused(first, tmp_path):
    labels = np.ones(BOX.shape, np.uint64)
    odd = labels.copy()
    odd[2:5] = 2**63
    specs = [write(tmp_path / "odd.h5", odd), write(tmp_path / "good.h5", labels)]
    with pytest.raises(VolumeError, match=f"odd.h5:odd: has id {2**63}"):
        consensus(*specs[:: 1 if first else -1], f"{tmp_path}/out.zarr", ConsensusConfig())
    assert not (tmp_path / "out.zarr").exists()


def row(*ids) -> np.ndarray:
    """Return a row of cubes along x, each four voxels wide, with the given ids."""
    return np.array(ids, np.uint64).repeat(4).reshape(1, 1, -1).repeat(4, 0).repeat(4, 1)


def judged(folder, a, b, tables=(None, None), block=(3, 4, 7), max_gap=20.0):
    """Return the overlaps of a consensus, keyed by positions of fragments in the row, and the consensus."""
    specs = [
        write(folder / f"{name}.zarr", part, (2, 0, 5), tables=extra)
        for name, part, extra in zip("ab", (a, b), tables, strict=True)
    ]
    out = str(folder / "all.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffn.assembly.consensus.PART_ZYX", block)
        patch.setattr("ffn.assembly.consensus.spread", partial(spread, max_nm=max_gap))
        consensus(*specs, out, ConsensusConfig(min_fragment_um3=2e-05))
    ids = read(out)[0, 0, ::4].tolist()
    table = read_table(out, "overlaps")
    assert (table[:, 2:5] % 24 == 0).all()
    rows = Counter()
    for one, other, *_, n in table.tolist():
        rows[ids.index(one), ids.index(other)] += n
    return {tuple(sorted(pair)): n for pair, n in rows.items()}, out


@pytest.mark.parametrize("block", [(3, 4, 7), (2, 3, 1), (99, 99, 99)])
def test_touching_fragments_of_one_object_in_either_segmentation_are_candidates(block, tmp_path):
    a, b = row(1, 1, 1, 2, 2, 3, 4), row(7, 8, 9, 9, 0, 0, 5)
    overlaps, _ = judged(tmp_path, a, b, block=block)
    assert overlaps == {(0, 1): 64, (1, 2): 64, (2, 3): 64, (3, 4): 64}  # 0 and 2 do not touch, 0 of b joins nothing


@pytest.mark.parametrize(("max_gap", "expected"), [(20.0, {(0, 2): 64}), (10.0, {})])
def test_fragments_touch_across_a_gap(max_gap, expected, tmp_path):
    a, b = row(1, 0, 1), row(7, 8, 9)  # four voxels of background
    assert judged(tmp_path, a, b, max_gap=max_gap)[0] == expected


def test_fragments_touch_across_a_fragment_too_small_to_keep(tmp_path):
    b = row(7, 9)
    b[:, :, 3] = 8  # 16 voxels
    assert judged(tmp_path, row(1, 1), b)[0] == {(0, 1): 48}


def test_overlaps_are_evidence_and_origins_of_ids_are_kept(tmp_path):
    a, b = row(10, 4, 6, 6), row(3, 1, 2, 9)
    tables = (
        {"overlaps": np.array([(10, 4, 0, -24, 0, 250), (10, 6, 0, 0, 0, 99)], np.int64)},
        {"overlaps": np.array([(2, 1, 0, -24, 24, 70)])},
    )
    overlaps, _ = judged(tmp_path, a, b, tables)
    assert overlaps == {(0, 1): 250, (1, 2): 70, (2, 3): 64}  # 10 and 6 do not touch
    a = row(10, 4, 6)
    a[0, 0, -1] = 5  # too small
    origins = np.array([(10, 1, 2, 3, 40, 1), (5, 1, 2, 3, 41, 1), (6, 1, 2, 3, 42, 2)], np.int64)
    _, out = judged(tmp_path / "kept", a, row(1, 1, 1), ({"origins": origins}, None))
    assert read_table(out, "origins").tolist() == origins[[0, 2]].tolist()


def test_only_pairs_of_pieces_that_touch_are_listed():
    num = 20_000
    one, many = np.ones(num, np.uint64), np.arange(1, num + 1, dtype=np.uint64)
    table = ContingencyTable(one, many, np.full(num, 5))
    faces = np.zeros((num - 1, 6), np.int64)
    faces[:, 0], faces[:, 1], faces[:, 5] = np.arange(num - 1), np.arange(1, num), 1
    none = np.empty((0, 6), np.int64)
    rows = candidates(table, fragment_ids(table, 5), faces, (none, none), (ALONE, ALONE))
    assert len(rows) == num - 1  # of 2e8 pairs
    assert (rows[:, 5] == 5).all()
