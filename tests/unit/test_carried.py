"""Origins and overlaps of subvolumes and of a consensus, in the ids of the result."""

import numpy as np
import pytest

from ffn.assembly.consensus import fragment_ids, kept_together
from ffn.assembly.reconcile import reconcile
from ffn.config import ReconcileConfig
from ffn.contingency import ContingencyTable, count_pairs
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.volume import Placement, create_volumes, open_volume, read_table

LEFT, RIGHT = Box((0, 0, 0), (4, 6, 10)), Box((0, 0, 6), (4, 6, 16))
CONFIG = ReconcileConfig(min_overlap_voxels=5)


def write(path, box, voxels, tables):
    with create_volumes(path, {"segmentation": np.uint64}, Placement(box), tables) as writers:
        writers["segmentation"].write(box, voxels)
    return f"{path}:segmentation"


def origin(*row):
    return np.array([row], np.int64)


def scene(folder, ids=(5, 8, 2, 3)):
    """A tube that both subvolumes see (ids 0 and 2), one beside it that the right one has pushed upwards (1 and 3)."""
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
    assert labels[0, 0, 15] == tube and len({int(i) for i in (tube, left, right)} - {0}) >= 2
    assert read_table(out, "origins").tolist() == [[tube, 1, 2, 3, 40, 1], [tube, 1, 2, 13, 50, 2]]
    overlaps = {(a, b): n for a, b, n in read_table(out, "overlaps").tolist()}
    shared = 4 * 4  # voxels of the overlap that one subvolume gave to the tube, the other to its neighbour
    if left == right:
        assert overlaps == {(tube, left): 30 + 7 + shared}
    else:
        assert overlaps[tube, left] == 30 and overlaps[tube, right] == 7 + shared
    assert all(a < b for a, b in overlaps)


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


def test_fragments_that_one_segmentation_kept_together_are_candidates():
    a = np.repeat(np.array([1, 1, 1, 2, 0], np.uint64), [60, 30, 10, 50, 9])
    b = np.repeat(np.array([7, 8, 0, 8, 8], np.uint64), [60, 30, 10, 50, 9])
    table = count_pairs(a, b)
    ids = fragment_ids(table, 5)
    of = {(int(x), int(y)): int(i) for x, y, i in zip(table.truth, table.segment, ids, strict=True)}
    expected = {(of[1, 7], of[1, 8]): 30, (of[1, 7], of[1, 0]): 10, (of[1, 8], of[1, 0]): 10, (of[1, 8], of[2, 8]): 30}
    rows = {tuple(sorted(pair)): n for pair, n in expected.items()}
    assert {(x, y): n for x, y, n in kept_together(table, ids).tolist()} == rows


def test_no_fragment_is_no_candidate():
    empty = ContingencyTable(*(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.int64)))
    assert kept_together(empty, fragment_ids(empty, 5)).shape == (0, 3)
