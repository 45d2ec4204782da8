"""Ids of many subvolumes as the nodes of one graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.geometry import Box
from ffn.volume import Volume

SLAB = 64  # sections read at a time, the depth of a chunk


@dataclass(frozen=True)
class SubvolumeIds:
    """Ids of one subvolume, in the order of their first voxels, so that their values do not matter.

    Parameters
    ----------
    ids : uint64 ndarray of shape (N,)
        Without 0.
    in_core : bool ndarray of shape (N,)
        Whether an id has voxels that the subvolume contributes.
    """

    ids: np.ndarray
    in_core: np.ndarray


@dataclass(frozen=True)
class Nodes:
    """Ids of all subvolumes, numbered through.

    Parameters
    ----------
    first : int64 ndarray of shape (S + 1,)
        First node of each subvolume; the last entry is the number of nodes.
    in_core : bool ndarray of shape (number of nodes,)
        As in `SubvolumeIds`.
    sorted_ids, order : tuples of S ndarrays
        Ids of each subvolume ascending (uint64), and their nodes relative to the first (int64).
    """

    first: np.ndarray
    in_core: np.ndarray
    sorted_ids: tuple[np.ndarray, ...]
    order: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, subvolumes: Sequence[SubvolumeIds]) -> Nodes:
        """Return the nodes of `subvolumes`, numbered in their order."""
        order = tuple(np.argsort(s.ids) for s in subvolumes)
        return cls(
            first=np.concatenate([[0], np.cumsum([len(s.ids) for s in subvolumes])]).astype(np.int64),
            in_core=np.concatenate([s.in_core for s in subvolumes]),
            sorted_ids=tuple(s.ids[o] for s, o in zip(subvolumes, order, strict=True)),
            order=order,
        )

    @property
    def num_nodes(self) -> int:
        """Ids in all."""
        return len(self.in_core)

    def find(self, subvolume: int, ids: np.ndarray) -> np.ndarray:
        """Return the nodes (int64) of non-zero `ids` of a subvolume, all of which it must hold."""
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
        The same for any ids that mean the same objects, apart from the ids.
    """
    in_core: dict[int, bool] = {}
    for slab in volume.box.blocks((SLAB, *volume.box.shape[1:])):
        labels = volume.read(slab)
        for segment_id in _in_order(labels):
            in_core.setdefault(segment_id, False)
        part = core.intersect(slab)
        if not part.is_empty:
            in_core |= dict.fromkeys(_in_order(labels[part.slices(slab.start)]), True)
    in_core.pop(0, None)
    return SubvolumeIds(np.array(list(in_core), np.uint64), np.array(list(in_core.values()), bool))


def _in_order(labels: np.ndarray) -> list[int]:
    """Ids in the order of their first voxels; only the first of each run of equal voxels is looked at."""
    flat = labels.ravel()
    starts = np.concatenate(([True], flat[1:] != flat[:-1]))
    ids, first = np.unique(flat[starts], return_index=True)
    return ids[np.argsort(first)].astype(np.uint64).tolist()
