"""The ids of all subvolumes as the nodes of one graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.assembly.stacked import Stacked
from ffn.contingency import count_ids
from ffn.geometry import Box
from ffn.io.volume import Volume

SLAB = 64  # sections read at a time, the depth of a chunk


@dataclass(frozen=True)
class SubvolumeIds:
    """Ids of one subvolume, in the order of their first voxels, so that the order does not depend on their values."""

    ids: np.ndarray  # without 0
    voxels: np.ndarray  # voxels of each in the whole subvolume
    in_core: np.ndarray  # whether an id has voxels in the core, the part that the subvolume contributes


@dataclass(frozen=True)
class Nodes:
    """Ids of all subvolumes, numbered consecutively."""

    first: np.ndarray  # first node of each subvolume; the last entry is the number of nodes
    voxels: np.ndarray  # as in `SubvolumeIds`
    in_core: np.ndarray
    sorted_ids: np.ndarray  # ids in ascending order within each subvolume, and their nodes
    order: np.ndarray

    @classmethod
    def of(cls, stacked: Stacked) -> Nodes:
        """Return the nodes of all subvolumes, numbered in their order."""
        num_nodes = int(stacked.first("ids")[-1])
        sorted_ids, order, start = np.empty(num_nodes, np.uint64), np.empty(num_nodes, np.int64), 0
        for subvolumes, ids in stacked.batches("ids"):
            ascending, stop = np.lexsort((ids, subvolumes)), start + len(ids)
            sorted_ids[start:stop], order[start:stop] = ids[ascending], ascending + start
            start = stop
        return cls(stacked.first("ids"), stacked.whole("voxels"), stacked.whole("in_core"), sorted_ids, order)

    @property
    def num_nodes(self) -> int:
        """Number of ids in all subvolumes."""
        return len(self.order)

    def find(self, subvolumes: np.ndarray | int, ids: np.ndarray) -> np.ndarray:
        """Return the nodes (int64) of `ids` in `subvolumes`, which must have them; both are arrays of shape (N,)."""
        ids = ids.astype(np.uint64)
        low = np.broadcast_to(self.first[subvolumes], ids.shape)
        high = np.broadcast_to(self.first[np.add(subvolumes, 1)], ids.shape)
        for _ in range(int((high - low).max(initial=0)).bit_length()):  # halves what is between low and high
            middle = (low + high) // 2
            is_below = self.sorted_ids[middle] < ids
            low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
        return self.order[low]

    def subvolumes_of(self, nodes: np.ndarray) -> np.ndarray:
        """Return the number (int64) of the subvolume that each node is in."""
        return np.searchsorted(self.first, nodes, "right") - 1


def scan(volume: Volume, core: Box) -> SubvolumeIds:
    """Find the ids of a subvolume, slab by slab."""
    voxels: dict[int, int] = {}
    in_core: set[int] = set()
    for slab in volume.box.blocks((SLAB, *volume.box.shape[1:])):
        labels = volume.read(slab)
        ids, counts = count_ids(labels)
        for segment_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
            voxels[segment_id] = voxels.get(segment_id, 0) + count
        part = core.intersect(slab)
        if not part.is_empty:
            in_core.update(count_ids(labels[part.slices(slab.start)])[0].tolist())
    voxels.pop(0, None)
    return SubvolumeIds(
        ids=np.array(list(voxels), np.uint64),
        voxels=np.array(list(voxels.values()), np.int64),
        in_core=np.array([segment_id in in_core for segment_id in voxels], bool),
    )
