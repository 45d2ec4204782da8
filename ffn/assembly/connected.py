"""Connected components: of a graph, and of the voxels in the blocks of a volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ffn.geometry import ZYX, Box, zyx

NO_ROWS = np.empty((0, 2), np.int64)


class Forest:
    """Connected components of a graph with nodes from 0, whose edges arrive a part at a time and are not kept."""

    def __init__(self, num_nodes: int) -> None:
        self._parents = np.arange(num_nodes)  # in the same component, and never larger than the node

    def join(self, edges: np.ndarray) -> None:
        """Join pairs of nodes: int array of shape (E, 2), in any order."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        edges = np.asarray(edges, np.int64).reshape(-1, 2)
        nodes, ends = np.unique(self._roots_of(edges), return_inverse=True)
        a, b = ends.reshape(-1, 2).T
        graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(len(nodes), len(nodes)))
        _, component = connected_components(graph, directed=False)
        self._parents[nodes] = nodes[np.unique(component, return_index=True)[1]][component]

    def roots(self) -> np.ndarray:
        """Return the smallest node of each node's component: int64 of shape (num_nodes,)."""
        while not np.array_equal(above := self._parents[self._parents], self._parents):
            self._parents = above
        return self._parents

    def _roots_of(self, nodes: np.ndarray) -> np.ndarray:
        above = self._parents[nodes]
        while not np.array_equal(above, nodes):
            nodes, above = above, self._parents[above]
        return nodes


def connected_roots(num_nodes: int, edges: np.ndarray) -> np.ndarray:
    """Return the smallest node of each node's component (int64); `edges` (E, 2) are pairs of nodes, in any order.

    Examples
    --------
    >>> connected_roots(4, np.array([[3, 1]])).tolist()
    [0, 1, 2, 1]
    """
    forest = Forest(num_nodes)
    forest.join(edges)
    return forest.roots()


def label_pieces(labels: np.ndarray) -> np.ndarray:
    """Return the connected pieces of a block, numbered from 1 in the order of their first voxels; faces connect."""
    from skimage.measure import label

    return label(labels.astype(np.int64), background=0, connectivity=1)


class LabelledPart(NamedTuple):
    """A part of a block, its labels, and its pieces, whose numbers in the block begin with `first`; -1 is none.

    `links` (piece, flat index of a voxel in the volume) names a voxel of every contact with other parts: with the piece
    that it belongs to, and with those before it that go on there. So neighbours agree on the voxel without knowing each
    other's pieces.
    """

    box: Box
    labels: np.ndarray
    pieces: np.ndarray
    first: int
    links: np.ndarray


def label_parts(block: Box, volume: Box, part_zyx: ZYX, read: Callable[[Box], np.ndarray]) -> Iterator[LabelledPart]:
    """Find the pieces of a block, part by part."""
    first = 0
    for part in block.blocks(part_zyx):
        outer = Box(part.start, zyx(n + 1 for n in part.stop)).intersect(volume)
        around = read(outer)
        labels = around[part.slices(outer.start)]
        labelled = label_pieces(labels)
        pieces = np.where(labelled > 0, labelled + (first - 1), -1)
        links = [pairs[pairs[:, 0] >= 0] for pairs in _links(part, volume, around, pieces)]
        yield LabelledPart(part, labels, pieces, first, np.concatenate([NO_ROWS, *links]))
        first += int(labelled.max(initial=0))


def pieces_of_block(block: Box, volume: Box, part_zyx: ZYX, read: Callable[[Box], np.ndarray]) -> dict[str, np.ndarray]:
    """Find the pieces of a block.

    The result has ``objects`` (id of each piece), ``voxels`` and ``first`` (flat index of its first voxel in the
    volume), and ``links`` of all parts.
    """
    objects, voxels, first = ([np.empty(0, np.int64)] for _ in range(3))
    links = [NO_ROWS]
    for part in label_parts(block, volume, part_zyx, read):
        pieces, where, counts = np.unique(part.pieces, return_index=True, return_counts=True)
        where, counts = where[pieces >= 0], counts[pieces >= 0]
        objects.append(part.labels.ravel()[where].astype(np.int64))
        voxels.append(counts)
        first.append(_flat(np.stack(np.unravel_index(where, part.labels.shape), axis=1), part.box, volume))
        links.append(part.links)
    return {
        "objects": np.concatenate(objects),
        "voxels": np.concatenate(voxels),
        "first": np.concatenate(first),
        "links": np.concatenate(links),
    }


def _links(part: Box, volume: Box, around: np.ndarray, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """Yield ``links`` of the first face of a part, and of that of the part behind it, along each axis."""
    for axis in range(3):
        for is_behind, plane in ((False, 0), (True, part.shape[axis])):
            if not volume.start[axis] < part.start[axis] + plane < volume.stop[axis]:
                continue
            face, before = (
                tuple(slice(at, at + 1) if k == axis else slice(n) for k, n in enumerate(part.shape))
                for at in (plane, plane - 1)
            )
            contacts = label_pieces(around[face])
            goes_on = contacts > 0
            if is_behind:
                goes_on &= around[face] == around[before]
            _, where = np.unique(contacts, return_index=True)
            places = np.stack(np.unravel_index(where, contacts.shape), axis=1)
            places[:, axis] += plane
            voxels = _flat(places, part, volume)
            if contacts.min(initial=1) > 0:
                voxels = np.append(0, voxels)  # there is no background
            piece = numbers[before if is_behind else face][goes_on]
            yield np.unique(np.stack([piece, voxels[contacts[goes_on]]], axis=1), axis=0)


def same_voxel(links: np.ndarray) -> np.ndarray:
    """Return the pairs of pieces that name the same voxel, from rows of voxel and piece."""
    voxels, pieces = links[np.argsort(links[:, 0], kind="stable")].T
    same = voxels[1:] == voxels[:-1]
    return np.stack([pieces[:-1], pieces[1:]], axis=1)[same]


def _flat(places: np.ndarray, part: Box, volume: Box) -> np.ndarray:
    """Return the flat index (int64) in the volume of voxels (N, 3) of a part."""
    indices = (places + np.subtract(part.start, volume.start)).T
    return np.ravel_multi_index(tuple(indices), volume.shape).astype(np.int64)
