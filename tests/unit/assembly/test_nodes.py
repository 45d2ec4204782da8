"""The ids of subvolumes as nodes."""

import numpy as np

from ffn.assembly.nodes import Nodes, SubvolumeIds, scan
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write


def test_ids_are_listed_in_the_order_of_their_first_voxels(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.assembly.nodes.SLAB", 2)
    labels = np.zeros((5, 3, 4), np.uint64)
    labels[0, 1], labels[1:4, 2], labels[4, 0] = 9, 2**63, 4
    with open_volume(write(tmp_path / "a.h5", labels, (10, 0, 0))) as volume:
        found = scan(volume, Box((10, 0, 0), (13, 3, 4)))
    assert found.ids.tolist() == [9, 2**63, 4] and found.voxels.tolist() == [4, 12, 4]
    assert found.in_core.tolist() == [True, True, False]


def test_nodes_are_numbered_through_all_subvolumes():
    parts = np.array([7, 3], np.uint64), np.array([3], np.uint64)
    nodes = Nodes.of([SubvolumeIds(ids, np.full(len(ids), 5), np.ones(len(ids), bool)) for ids in parts])
    assert nodes.num_nodes == 3
    assert nodes.find(0, np.array([3, 7, 3])).tolist() == [1, 0, 1] and nodes.find(1, np.array([3])).tolist() == [2]
