"""Which fragments of a consensus agglomeration has to look at."""

from collections import Counter

import numpy as np
import pytest

from ffn.assembly.config import ConsensusConfig
from ffn.assembly.consensus import candidates, consensus, fragment_ids
from ffn.contingency import ContingencyTable
from ffn.io.open import read_table

from ..volumes import read, write


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
        patch.setattr("ffn.assembly.consensus.MAX_GAP_NM", max_gap)
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


def test_overlaps_of_both_inputs_are_evidence(tmp_path):
    a, b = row(10, 4, 6, 6), row(3, 1, 2, 9)
    tables = (
        {"overlaps": np.array([(10, 4, 0, -24, 0, 250), (10, 6, 0, 0, 0, 99)], np.int64)},
        {"overlaps": np.array([(2, 1, 0, -24, 24, 70)])},
    )
    overlaps, _ = judged(tmp_path, a, b, tables)
    assert overlaps == {(0, 1): 250, (1, 2): 70, (2, 3): 64}  # 10 and 6 do not touch


def test_origins_of_ids_that_remain_are_kept(tmp_path):
    a = row(10, 4, 6)
    a[0, 0, -1] = 5  # too small
    origins = np.array([(10, 1, 2, 3, 40, 1), (5, 1, 2, 3, 41, 1), (6, 1, 2, 3, 42, 2)], np.int64)
    _, out = judged(tmp_path, a, row(1, 1, 1), ({"origins": origins}, None))
    assert read_table(out, "origins").tolist() == origins[[0, 2]].tolist()


def test_only_pairs_of_pieces_that_touch_are_listed():
    num = 20_000
    one, many = np.ones(num, np.uint64), np.arange(1, num + 1, dtype=np.uint64)
    table = ContingencyTable(one, many, np.full(num, 5))
    faces = np.zeros((num - 1, 6), np.int64)
    faces[:, 0], faces[:, 1], faces[:, 5] = np.arange(num - 1), np.arange(1, num), 1
    none = np.empty((0, 6), np.int64)
    rows = candidates(table, fragment_ids(table, 5), faces, (none, none))
    assert len(rows) == num - 1  # of 2e8 pairs
    assert (rows[:, 5] == 5).all()
