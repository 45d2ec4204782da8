"""Origins and overlaps of subvolumes and of a consensus, in the ids of the result."""

import numpy as np
import pytest

from ffn.assembly.candidates import candidates
from ffn.assembly.consensus import consensus, fragment_ids
from ffn.assembly.reconcile import reconcile
from ffn.config import ConsensusConfig, ReconcileConfig
from ffn.contingency import ContingencyTable
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volumes
from ffn.io.open import open_volume, read_table
from ffn.io.volume import Placement

LEFT, RIGHT = Box((0, 0, 0), (4, 6, 10)), Box((0, 0, 6), (4, 6, 16))
CONFIG = ReconcileConfig(min_overlap_voxels=5)


def write(path, box, voxels, tables):
    with create_volumes(path, {"segmentation": np.uint64}, Placement(box), tables) as writers:
        writers["segmentation"].write(box, voxels)
    return f"{path}:segmentation"


def origin(*row):
    return np.array([row], np.int64)


def scene(folder, ids=(5, 8, 2, 3)):
    """A tube that both subvolumes see (ids 0 and 2), and one next to it that the right one has shifted (1 and 3)."""
    left, right = np.zeros(LEFT.shape, np.uint64), np.zeros(RIGHT.shape, np.uint64)
    left[:, 0:3], right[:, 0:3] = ids[0], ids[2]
    left[:, 4:6], right[:2, 3:6] = ids[1], ids[3]
    right[:, 2] = ids[3]  # claimed by the tube's neighbour here, by the tube over there
    tables = {"origins": origin(ids[0], 1, 2, 3, 40, 1), "overlaps": origin(ids[1], ids[0], 30)}
    specs = [write(folder / "left.h5", LEFT, left, tables)]
    tables = {"origins": origin(ids[2], 1, 2, 13, 50, 2), "overlaps": origin(ids[3], ids[2], 7)}
    return [*specs, write(folder / "right.h5", RIGHT, right, tables)]


@pytest.mark.parametrize("ids", [(5, 8, 2, 3), (1, 2, 1, 2), (9, 4, 7, 6)])
def test_tables_come_in_global_ids_whatever_the_local_ones(ids, tmp_path):
    specs, out = scene(tmp_path, ids), str(tmp_path / "all.h5:segmentation")
    reconcile(specs[::-1], out, CONFIG)
    with open_volume(out) as volume:
        labels = volume.read()
    tube, left, right = labels[0, 0, 0], labels[3, 5, 0], labels[0, 5, 15]
    assert labels[0, 0, 15] == tube and len({int(i) for i in (tube, left, right)} - {0}) == 3
    assert read_table(out, "origins").tolist() == [[tube, 1, 2, 3, 40, 1], [tube, 1, 2, 13, 50, 2]]
    overlaps = {(a, b): n for a, b, n in read_table(out, "overlaps").tolist()}
    shared = 4 * 4  # voxels of the overlap that one subvolume gave to the tube, the other to its neighbour
    assert overlaps == {(tube, left): 30, (tube, right): 7 + shared, (left, right): 2 * 2 * 4}


def test_subvolumes_without_tables_have_only_what_they_share(tmp_path):
    specs = scene(tmp_path)
    for number, spec in enumerate(specs):
        with open_volume(spec) as volume:
            box, voxels = volume.box, volume.read()
        specs[number] = write(tmp_path / f"bare{number}.h5", box, voxels, {})
    out = str(tmp_path / "all.h5:segmentation")
    reconcile(specs, out, CONFIG)
    assert read_table(out, "origins").shape == (0, 6)
    assert read_table(out, "overlaps")[:, 2].tolist() == [16, 16]


def test_tables_of_another_form_are_refused_by_name(tmp_path):
    specs = scene(tmp_path)
    with open_volume(specs[0]) as volume:
        box, voxels = volume.box, volume.read()
    specs[0] = write(tmp_path / "old.h5", box, voxels, {"origins": origin(5, 1, 2, 3, 40)})
    with pytest.raises(VolumeError, match=r"old.h5.*'origins' has shape \(1, 5\), expected 6 columns.*ffn segment"):
        reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)


@pytest.mark.parametrize(
    ("name", "row"), [("overlaps", (8, 6, 30)), ("overlaps", (99, 5, 30)), ("origins", (6, 1, 2, 3, 40, 1))]
)
def test_ids_that_the_volume_does_not_hold_are_refused_by_name(name, row, tmp_path):
    specs = scene(tmp_path)
    with open_volume(specs[0]) as volume:
        box, voxels = volume.box, volume.read()
    specs[0] = write(tmp_path / "other.h5", box, voxels, {name: origin(*row)})
    absent = row[0] if row[0] in (6, 99) else row[1]
    with pytest.raises(VolumeError, match=rf"other.h5:segmentation: its table '{name}' names id {absent}, which no"):
        reconcile(specs, str(tmp_path / "all.h5:segmentation"), CONFIG)
    assert not (tmp_path / "all.h5").exists()


def row(*ids) -> np.ndarray:
    """Ids along x, four voxels each in every direction."""
    return np.array(ids, np.uint64).repeat(4).reshape(1, 1, -1).repeat(4, 0).repeat(4, 1)


def judged(folder, a, b, tables=(None, None), block=(3, 4, 7), max_gap=2.0):
    """Table of the consensus, by places of fragments in the row."""
    box = Box.from_shape(a.shape, (2, -3, 5))
    specs = [
        write(folder / f"{name}.h5", box, part, extra or {})
        for name, part, extra in zip("ab", (a, b), tables, strict=True)
    ]
    out = str(folder / "all.h5:segmentation")
    consensus(*specs, out, ConsensusConfig(min_fragment_size=20, max_gap=max_gap, block_size_zyx=block))
    with open_volume(out) as volume:
        ids = volume.read()[0, 0, ::4].tolist()
    rows = {(ids.index(one), ids.index(other)): n for one, other, n in read_table(out, "overlaps").tolist()}
    return {tuple(sorted(pair)): n for pair, n in rows.items()}, out, ids


@pytest.mark.parametrize("block", [(3, 4, 7), (2, 3, 1), (99, 99, 99)])
def test_touching_fragments_that_one_segmentation_kept_together_are_candidates(block, tmp_path):
    a, b = row(1, 1, 1, 2, 2, 3, 4), row(7, 8, 9, 9, 0, 0, 5)
    overlaps, _, _ = judged(tmp_path, a, b, block=block)
    assert overlaps == {(0, 1): 64, (1, 2): 64, (2, 3): 64, (3, 4): 64}  # 0 and 2 do not touch, 0 of b joins nothing


@pytest.mark.parametrize(("max_gap", "expected"), [(2.0, {(0, 2): 64}), (1.0, {})])
def test_fragments_touch_across_a_gap(max_gap, expected, tmp_path):
    a, b = row(1, 0, 1), row(7, 8, 9)  # four voxels of background
    assert judged(tmp_path, a, b, max_gap=max_gap)[0] == expected


def test_fragments_touch_across_one_too_small_to_be_kept(tmp_path):
    b = row(7, 9)
    b[:, :, 3] = 8  # 16 voxels
    assert judged(tmp_path, row(1, 1), b)[0] == {(0, 1): 48}


def test_overlaps_of_both_inputs_are_carried(tmp_path):
    a, b = row(10, 4, 6, 6), row(3, 1, 2, 9)
    tables = {"overlaps": np.array([(10, 4, 250), (10, 6, 99)], np.int64)}, {"overlaps": np.array([(2, 1, 70)])}
    overlaps, _, _ = judged(tmp_path, a, b, tables)
    assert overlaps == {(0, 1): 250, (1, 2): 70, (2, 3): 64}  # 10 and 6 do not touch


def test_what_both_inputs_say_adds_up(tmp_path):
    a = row(10, 4)
    tables = {"overlaps": np.array([(10, 4, 250)], np.int64)}, {"overlaps": np.array([(4, 10, 30), (10, 4, 5)])}
    assert judged(tmp_path, a, a, tables)[0] == {(0, 1): 285}


def test_origins_of_ids_that_remain_are_carried(tmp_path):
    a = row(10, 4, 6)
    a[0, 0, -1] = 5  # too small
    origins = np.array([(10, 1, 2, 3, 40, 1), (5, 1, 2, 3, 41, 1), (6, 1, 2, 3, 42, 2)], np.int64)
    _, out, _ = judged(tmp_path, a, row(1, 1, 1), ({"origins": origins}, None))
    assert read_table(out, "origins").tolist() == origins[[0, 2]].tolist()


def test_pieces_of_one_object_cost_no_more_than_their_borders():
    num = 20_000
    one, many = np.ones(num, np.uint64), np.arange(1, num + 1, dtype=np.uint64)
    table = ContingencyTable(one, many, np.full(num, 5))
    faces = ContingencyTable(many[:-1] - 1, many[:-1], np.ones(num - 1, np.int64))
    none = np.empty((0, 3), np.int64)
    rows = candidates(table, fragment_ids(table, 5), faces, none, none)
    assert len(rows) == num - 1  # 2e8 pairs in all
    assert (rows[:, 2] == 5).all()


def test_no_fragment_is_no_candidate():
    empty = ContingencyTable(*(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.int64)))
    claims = np.array([(1, 2, 9)], np.int64)
    assert candidates(empty, fragment_ids(empty, 5), empty, claims, claims).shape == (0, 3)
