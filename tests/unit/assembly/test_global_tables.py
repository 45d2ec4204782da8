"""Origins and overlaps of subvolumes get the ids of the whole volume."""

import numpy as np
import pytest

from ffn.assembly.config import ReconcileConfig
from ffn.assembly.reconcile import reconcile
from ffn.geometry import Box
from ffn.io.open import read_table

from ..volumes import read, write

LEFT, RIGHT = Box((0, 0, 0), (4, 6, 10)), Box((0, 0, 6), (4, 6, 16))
SIZE = (10.0, 10.0, 40.0)  # cells are 24 × 24 × 6 voxels
CONFIG = ReconcileConfig(min_overlap_voxels=5, min_component_um3=1e-06)


def origin(*row):
    return np.array([row], np.int64)


def claims(*rows):
    """Rows of ``overlaps`` in cells at x."""
    return np.array([(one, other, 0, 0, x, voxels) for one, other, x, voxels in rows], np.int64)


def scene(folder, ids=(5, 8, 2, 3)):
    """A tube in both subvolumes (ids 0 and 2), and its neighbour (1 and 3), which takes part of it on the right."""
    left, right = np.zeros(LEFT.shape, np.uint64), np.zeros(RIGHT.shape, np.uint64)
    left[:, 0:3], right[:, 0:3] = ids[0], ids[2]
    left[:, 4:6], right[:2, 3:6] = ids[1], ids[3]
    right[:, 2] = ids[3]  # the tube's neighbour claims what is the tube on the left
    tables = {
        "origins": origin(ids[0], 1, 2, 3, 40, 1),
        "overlaps": claims((ids[1], ids[0], 0, 30), (ids[1], ids[0], 6, 900)),
    }
    specs = [write(folder / "left.zarr", left, LEFT.start, SIZE, tables=tables)]
    tables = {
        "origins": origin(ids[2], 1, 2, 13, 50, 2),
        "overlaps": claims((ids[3], ids[2], 6, 500), (ids[3], ids[2], 12, 7)),
    }
    return [*specs, write(folder / "right.zarr", right, RIGHT.start, SIZE, tables=tables)]


@pytest.mark.parametrize("ids", [(5, 8, 2, 3), (1, 2, 1, 2), (9, 4, 7, 6)])
def test_tables_get_global_ids_whatever_the_local_ones_are(ids, tmp_path):
    specs, out = scene(tmp_path, ids), str(tmp_path / "all.zarr")
    reconcile(specs[::-1], out, CONFIG)
    labels = read(out)
    tube, left, right = labels[0, 0, 0], labels[3, 5, 0], labels[0, 5, 15]
    assert labels[0, 0, 15] == tube and len({int(i) for i in (tube, left, right)} - {0}) == 3
    assert read_table(out, "origins").tolist() == [[tube, 1, 2, 3, 40, 1], [tube, 1, 2, 13, 50, 2]]
    overlaps = {(a, b, x): n for a, b, _, _, x, n in read_table(out, "overlaps").tolist()}
    shared = 4 * 4  # voxels of the overlap that are the tube on one side and its neighbour on the other
    assert overlaps == {  # the middle of the cell at 6 is in the core of the right subvolume, from 8 on
        (tube, left, 0): 30,
        (tube, right, 6): 500 + shared,
        (tube, right, 12): 7,
        (left, right, 6): 2 * 2 * 4,
    }
