"""The ids of subvolumes as nodes."""

import numpy as np

from ffn.assembly.nodes import Nodes, scan
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write
from .conftest import stacked


def test_ids_are_listed_in_the_order_of_their_first_voxels(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.assembly.nodes.SLAB", 2)
    labels = np.zeros((5, 3, 4), np.uint64)
    labels[0, 1], labels[1:4, 2], labels[4, 0] = 9, 2**63, 4
    with open_volume(write(tmp_path / "a.h5", labels, (10, 0, 0))) as volume:
        found = scan(volume, Box((10, 0, 0), (13, 3, 4)))
    assert found.ids.tolist() == [9, 2**63, 4] and found.voxels.tolist() == [4, 12, 4]
    assert found.in_core.tolist() == [True, True, False]


def test_nodes_are_numbered_through_all_subvolumes():
    parts = [np.array(ids, np.uint64) for ids in ([7, 3], [], [3], [2**63, 9, 1])]
    nodes = Nodes.of(stacked([{"ids": ids} for ids in parts]))
    assert nodes.num_nodes == 6
    assert nodes.find(0, np.array([3, 7, 3])).tolist() == [1, 0, 1]
    assert nodes.find(np.array([3, 0, 2, 3]), np.array([1, 3, 3, 9])).tolist() == [5, 1, 2, 4]
    assert nodes.subvolumes_of(np.arange(6)).tolist() == [0, 0, 2, 3, 3, 3]
