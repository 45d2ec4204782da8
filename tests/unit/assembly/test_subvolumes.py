"""The ids of subvolumes as nodes, and their connected components."""

import contextlib

import numpy as np

from ffn.assembly.connected import connected_roots
from ffn.assembly.subvolumes import COLUMNS, LocalIds, Subvolumes, SubvolumeTables, ids_of
from ffn.assembly.tiling import Tiling
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write


def test_ids_are_listed_in_the_order_of_their_first_voxels(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.assembly.subvolumes.SLAB", 2)
    labels = np.zeros((5, 3, 4), np.uint64)
    labels[0, 1], labels[1:4, 2], labels[4, 0] = 9, 2**63, 4
    with open_volume(write(tmp_path / "a.zarr", labels, (10, 0, 0))) as volume:
        found = ids_of(volume, Box((10, 0, 0), (13, 3, 4)))
    assert found["ids"].tolist() == [9, 2**63, 4] and found["voxels"].tolist() == [4, 12, 4]
    assert found["in_core"].tolist() == [True, True, False]


def test_nodes_are_numbered_through_all_subvolumes():
    nothing = {name: np.zeros((0, *columns), dtype) for name, (columns, dtype) in COLUMNS.items()}
    parts = [np.array(ids, np.uint64) for ids in ([7, 3], [], [3], [2**63, 9, 1])]
    nodes = LocalIds.of(SubvolumeTables({**nothing, "ids": ids} for ids in parts))
    assert nodes.num_nodes == 6
    assert nodes.find(0, np.array([3, 7, 3])).tolist() == [1, 0, 1]
    assert nodes.find(np.array([3, 0, 2, 3]), np.array([1, 3, 3, 9])).tolist() == [5, 1, 2, 4]
    assert nodes.subvolumes_of(np.arange(6)).tolist() == [0, 0, 2, 3, 3, 3]


def test_the_least_recently_used_volume_is_closed(monkeypatch):
    events = []

    @contextlib.contextmanager
    def recorded(spec):
        events.append(f"+{spec}")
        try:
            yield spec
        finally:
            events.append(f"-{spec}")

    monkeypatch.setattr("ffn.assembly.subvolumes.open_segmentation", recorded)
    monkeypatch.setattr("ffn.assembly.subvolumes.MAX_OPEN", 2)
    subvolumes = Subvolumes(Tiling(([(0, 1)], [(0, 1)], [(0, 1), (1, 2), (2, 3)])), list("abc"), (1.0, 1.0, 1.0))
    assert "".join(map(subvolumes.volume, (0, 1, 0, 2))) == "abac"
    assert events == ["+a", "+b", "+c", "-b"]


def test_roots_do_not_depend_on_the_order_of_edges():
    edges = np.array([[5, 2], [2, 0], [3, 4]])
    assert connected_roots(6, edges).tolist() == [0, 1, 0, 3, 3, 0]
    assert connected_roots(6, edges[::-1, ::-1]).tolist() == [0, 1, 0, 3, 3, 0]
    assert connected_roots(3, np.zeros((0, 2))).tolist() == [0, 1, 2]
    assert connected_roots(0, np.zeros((0, 2))).tolist() == []
