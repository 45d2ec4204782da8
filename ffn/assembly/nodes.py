"""The ids of all subvolumes as the nodes of one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.contingency import count_ids
from ffn.geometry import Box
from ffn.io.volume import Volume

SLAB = 64  # sections read at a time, the depth of a chunk


@dataclass(frozen=True)
class SubvolumeIds:
    """Ids of one subvolume, in the order of their first voxels, so that the order does not depend on their values.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Without 0.
    voxels : int64 ndarray of shape (N,)
        Voxels of each in the whole subvolume.
    in_core : bool ndarray of shape (N,)
        Whether an id has voxels in the core, the part that the subvolume contributes.
    """

    ids: np.ndarray
    voxels: np.ndarray
    in_core: np.ndarray


@dataclass(frozen=True)
class Nodes:
    """Ids of all subvolumes, numbered consecutively.

    Parameters
    ----------
    first : int64 ndarray of shape (S + 1,)
        First node of each subvolume; the last entry is the number of nodes.
    voxels, in_core : int64 and bool ndarrays of shape (number of nodes,)
        As in `SubvolumeIds`.
    sorted_ids, order : tuples of S ndarrays
        Ids of each subvolume in ascending order (uint64), and their nodes relative to the subvolume's first (int64).
    """

    first: np.ndarray
    voxels: np.ndarray
    in_core: np.ndarray
    sorted_ids: tuple[np.ndarray, ...]
    order: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, subvolumes: Sequence[SubvolumeIds]) -> Nodes:
        """Return the nodes of `subvolumes`, numbered in their order."""
        order = tuple(np.argsort(s.ids) for s in subvolumes)
        return cls(
            first=np.concatenate([[0], np.cumsum([len(s.ids) for s in subvolumes])]).astype(np.int64),
            voxels=np.concatenate([s.voxels for s in subvolumes]),
            in_core=np.concatenate([s.in_core for s in subvolumes]),
            sorted_ids=tuple(s.ids[o] for s, o in zip(subvolumes, order, strict=True)),
            order=order,
        )

    @property
    def num_nodes(self) -> int:
        """Number of ids in all subvolumes."""
        return len(self.in_core)

    def find(self, subvolume: int, ids: np.ndarray) -> np.ndarray:
        """Return the nodes (int64) of `ids`, all of which the subvolume must have."""
        position = np.searchsorted(self.sorted_ids[subvolume], ids.astype(np.uint64))
        return self.first[subvolume] + self.order[subvolume][position]


def scan(volume: Volume, core: Box) -> SubvolumeIds:
    """Find the ids of a subvolume, slab by slab.

    Parameters
    ----------
    volume : Volume
        Labels, 0 is background.
    core : Box
        The part that the subvolume contributes.

    Returns
    -------
    SubvolumeIds
        Apart from the ids themselves, it is the same for any labelling of the same objects.
    """
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
