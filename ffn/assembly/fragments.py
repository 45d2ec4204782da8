"""Fragments of bodies, joined to groups by affinities, and groups to segments by those that cover them, see `settle`.

Voxels without a fragment, as in a section that is wholly dark, keep their segment. The end of the step needs memory for
all fragments and their contacts. Masked voxels are 0.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ffn.assembly.components import connected_roots
from ffn.assembly.config import FillConfig
from ffn.assembly.contacts import faces_in
from ffn.assembly.given import Constraints, corrected
from ffn.assembly.merge import apply_groups
from ffn.assembly.merge_graph import Linkage
from ffn.contingency import RowLookup, RowSum, add_up, count_pairs, largest_parts, rows_of
from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, add
from ffn.inference.affinities import AXES, FRAGMENTS
from ffn.io.block_log import Result
from ffn.io.masks import Inputs, Masks
from ffn.io.scratch import Table, Tables
from ffn.io.volume import Volume, require_inside, voxel_size_of

log = logging.getLogger(__name__)

MIN_SHARE = 0.5  # of a body that a segment covers, which then has all of it; our choice
# What tells a segment of several bodies; our choices, on FIB-25: docs/experiments.md
MIN_JOINED = 0.3  # mean affinity between two parts of a body, by average linkage
MIN_LARGEST = 0.7  # share of a body in its largest part
TWO_SEGMENTS = 77  # affinity (0.3) that faces between two segments lose; our choice: docs/experiments.md
# Where both groups are larger than this, a tenfold of the smaller one asks for this much more affinity; our choices, on
# FIB-25 at 30 nm and SNEMI3D: docs/experiments.md
SMALL_UM3, SURER = 0.0013, 0.05
CERTAIN = 255  # affinity
ALONG_Z, IN_SECTION = 2, 4  # columns of links: the sum of affinities, then the number of faces
MAX_ID = np.uint64(2**64 - 1)


class Fragments(NamedTuple):
    """A segmentation, and the fragments of the same box."""

    segmentation: Volume
    fragments: Volume
    affinities: tuple[Volume, ...]
    masks: Masks
    config: FillConfig
    corrections: str | None

    @staticmethod
    def volumes_of(affinities: str) -> dict[str, str]:
        """Return the volumes in a store of ``ffn affinities``."""
        return {name: f"{affinities}/{name}" for name in (*AXES, FRAGMENTS)}

    @classmethod
    def open(cls, inputs: Inputs, config: FillConfig, corrections: str | None) -> Fragments:
        """Open the inputs of ``ffn fill --affinities``."""
        segmentation, fragments = inputs.segmentation("segmentation"), inputs.volume(FRAGMENTS)
        require_inside(fragments, segmentation.box)
        affinities, masks = tuple(map(inputs.volume, AXES)), inputs.masks(inputs.volume("image"))
        return cls(segmentation, fragments, affinities, masks, config, corrections)

    def parts(self, tile: Box) -> list[Box]:
        """Return what is worked on at a time."""
        return [tile]

    def read(self, box: Box) -> np.ndarray:
        """Return the fragments (int64) in a box, 0 where it is masked."""
        found = self.fragments.read(box).astype(np.int64)
        if self.masks:
            found[self.masks.read(box)] = 0
        return found

    def compete(self, tile: Box) -> Result:
        """Count what `settle` needs in a tile."""
        outer = Box(tile.start, add(tile.stop, (1, 1, 1))).intersect(self.segmentation.box)
        ids = self.read(outer)
        pairs = count_pairs(ids[tile.slices(outer.start)], self.segmentation.read(tile))
        rows = [np.empty((0, 4), np.int64)]
        for volume, (ends, places, step) in zip(self.affinities, faces_in(ids, tile, outer), strict=True):
            values = volume.read(outer)[tuple((places - outer.start + step).T)]
            a, b, affinity, faces = add_up(np.column_stack([ends, values, np.ones(len(ends), np.int64)])).T
            for column, numbers in enumerate((affinity * faces, faces), ALONG_Z if step[0] else IN_SECTION):
                rows.append(np.column_stack([a, b, np.full(len(a), column), numbers]))
        covered = rows_of(pairs.keep((pairs.a > 0) | (pairs.b > 0)))
        return {"covered": covered, "links": add_up(np.concatenate(rows))}

    def settle(self, results: Iterable[Result]) -> dict[str, Table]:
        """Choose the segment of each fragment."""
        size = voxel_size_of(self.segmentation)
        return settle(results, self.config, corrected(self.corrections, self.segmentation), size)

    def filled(self, box: Box, _tile: Box, settled: Tables, _number: int) -> np.ndarray:
        """Return the ids (uint64) of a box."""
        ids, labels = self.read(box).astype(np.uint64), self.segmentation.read(box).astype(np.uint64)
        if self.masks:
            labels[self.masks.read(box)] = 0
        ids[RowLookup(*settled.read("divided").T).of_voxels(ids, labels) >= 0] = 0
        kept = _renamed(labels, settled, "segments", "names")
        return np.where(ids > 0, _renamed(ids, settled, "fragments", "owners"), kept)


def _renamed(ids: np.ndarray, settled: Tables, keys: str, values: str) -> np.ndarray:
    """Return the values of ids in a table with ascending keys, of which only those between the ids are read."""
    first, last = np.searchsorted(settled.arrays[keys], [ids.min(), ids.max() + 1]).tolist()
    return apply_groups(ids, settled.read(keys, first, last), settled.read(values, first, last))


def settle(results: Iterable[Result], config: FillConfig, given: Constraints, size: VoxelSize) -> dict[str, Table]:
    """Choose the segment of each fragment from the results of all tiles: ``fragments`` and ``owners`` (uint64).

    Groups of fragments are joined as long as the affinity between two of them is high enough, see `Bodies`, but never
    if corrections separate their segments; it counts for less between fragments that two segments cover. A segment then
    takes the groups that it covers mostly, unless it joins bodies, see `without_runaways`; the others get new ids.
    ``segments`` and ``names`` (uint64) tell who has most of the voxels of each segment, itself where they have no
    fragment; ``divided`` is of `divided`.
    """
    covered, links = RowSum(3, np.uint64), RowSum(4)
    for each in results:
        covered.add(each["covered"])
        links.add(each["links"])
    rows = covered.rows()
    if (largest := rows[:, 1].max(initial=0)) == MAX_ID:
        raise VolumeError(f"the segmentation has id {largest}, expected smaller ones: it stands for ignored voxels")
    named = np.concatenate(given)  # corrections have the last word about these segments
    alone = rows[(rows[:, 0] == 0) & ~np.isin(rows[:, 1], named)]
    rows = rows[rows[:, 0] > 0]
    fragments, owners = owners_of(rows)
    place = np.searchsorted(fragments, rows[:, 0].astype(np.int64))
    known = np.intersect1d(owners, named)
    nodes = np.where(np.isin(owners, named), np.searchsorted(known, owners), len(known) + np.arange(len(fragments)))
    num_nodes = len(known) + len(fragments)
    edges = links_of(fragments, links.rows())
    a, b = owners[edges[:, :2]].T
    edges[:, 2::2] -= TWO_SEGMENTS * edges[:, 3::2] * ((a > 0) & (b > 0) & (a != b))[:, np.newaxis]
    edges[:, :2] = nodes[edges[:, :2]]
    rivals = np.searchsorted(known, given.apart[np.isin(given.apart, known).all(axis=1)])
    bodies = Bodies(edges, rivals, np.bincount(nodes[place], rows[:, 2], num_nodes), size)
    roots = connected_roots(num_nodes, bodies.run(lambda *_: CERTAIN * config.min_affinity))
    groups, group = np.unique(roots[nodes], return_inverse=True)
    _, segments = owners_of(add_up(np.column_stack([group[place].astype(np.uint64), rows[:, 1:]])))
    segments[groups < len(known)] = known[groups[groups < len(known)]]
    edges[:, :2] = np.searchsorted(groups, roots[edges[:, :2]])
    segments = without_runaways(segments, np.bincount(group[place], rows[:, 2]), edges, known)
    new = segments == 0
    segments[new] = largest + 1 + np.arange(new.sum(), dtype=np.uint64)
    log.info("%d fragments, %d groups of them, %d of which are new segments", len(fragments), len(groups), new.sum())
    tells = (rows[:, 1] > 0) & (~np.isin(rows[:, 1], named) | (rows[:, 1] == owners[place]))
    parts = np.column_stack([rows[:, 1], segments[group[place]], rows[:, 2]])[tells]
    parts = add_up(np.concatenate([parts, alone[:, [1, 1, 2]]]))
    ids, names, _ = parts[largest_parts(*parts.T)].T
    found: dict[str, Table] = {"fragments": fragments.astype(np.uint64), "owners": segments[group]}
    return found | {"segments": ids, "names": names, "divided": divided(rows, given.apart)}


def divided(covered: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return the fragments that have voxels of two segments which corrections separate, with each of the two.

    These keep their voxels there, or a cut through a fragment would be lost. Parameters and result are rows of uint64.
    """
    found = [np.empty((0, 2), np.uint64)]
    for pair in apart:
        of_both = covered[np.isin(covered[:, 1], pair), :2]
        ids, count = np.unique(of_both[:, 0], return_counts=True)
        found.append(of_both[np.isin(of_both[:, 0], ids[count > 1])])
    return np.unique(np.concatenate(found), axis=0)


def links_of(fragments: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return links (int64, (N, 6)) of the places of fragments for `Linkage`: sum and number along z and in the section.

    Rows have two fragments, the column in the result, and the value.
    """
    pairs, places = np.unique(rows[:, :2], axis=0, return_inverse=True)
    links = np.zeros((len(pairs), 6), np.int64)
    links[:, :2] = np.searchsorted(fragments, pairs)
    links[places.ravel(), rows[:, 2]] = rows[:, 3]
    return links


def owners_of(covered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all fragments (int64, ascending), and the segment that covers most of each (uint64), 0 if none does.

    `covered` has rows of fragment, segment (0 for none) and voxels, by ascending fragment.
    """
    ids, segments, voxels = covered.T
    fragments, index = np.unique(ids, return_inverse=True)
    total = np.bincount(index, voxels)
    most = covered[segments > 0][largest_parts(*covered[segments > 0].T)]
    place = np.searchsorted(fragments, most[:, 0])
    owners = np.zeros(len(fragments), np.uint64)
    owners[place] = np.where(most[:, 2] >= MIN_SHARE * total[place], most[:, 1], np.uint64(0))
    return fragments.astype(np.int64), owners


def without_runaways(owners: np.ndarray, sizes: np.ndarray, edges: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Free the fragments of a segment in which affinities see several bodies, none of which is most of it.

    A flood that has leaked goes on in the next body, and may soon hold much of the box. If most of a segment is one
    part, it is kept, because affinities take mitochondria and thin necks for membranes, too. Pieces of a segment whose
    groups do not touch are judged one by one.

    Parameters
    ----------
    owners, sizes : uint64 and float ndarray of shape (N,)
        Segments of the fragments, 0 for none, and their voxels.
    edges : int64 ndarray of shape (E, 6)
        See `links_of`.
    given : uint64 ndarray
        Segments that corrections name. They are left as they are: a freed fragment would be free of corrections, too.

    Returns
    -------
    uint64 ndarray of shape (N,)
        The segments, 0 also for freed fragments.
    """
    (a, b), num_fragments = owners[edges[:, :2]].T, len(owners)
    inside = edges[(a == b) & (a > 0) & ~np.isin(a, given)]
    parts = connected_roots(num_fragments, Linkage(inside, inside[:0, :2]).run(lambda *_: MIN_JOINED * CERTAIN))
    pieces = connected_roots(num_fragments, inside[:, :2])
    largest = np.zeros(num_fragments)
    np.maximum.at(largest, pieces, np.bincount(parts, sizes, num_fragments)[parts])
    is_body = largest >= MIN_LARGEST * np.bincount(pieces, sizes, num_fragments)
    return np.where(is_body[pieces], owners, np.uint64(0))


class Bodies(Linkage):
    """Groups of fragments; `voxels` are their sizes.

    Faces along z and in the section count as much, however many there are: where a membrane runs obliquely through
    thick sections, two bodies have many faces along z, of which the network is unsure.
    """

    def __init__(self, links: np.ndarray, apart: np.ndarray, voxels: np.ndarray, size: VoxelSize) -> None:
        super().__init__(links, apart)
        self._volumes: list[float] = (voxels * math.prod(size) / 1e9 / SMALL_UM3).tolist()

    def score(self, a: int, b: int) -> float:
        """Return the mean affinity between two groups, less what their size asks for."""
        smaller = max(1.0, min(self._volumes[a], self._volumes[b]))
        return super().score(a, b) - CERTAIN * SURER * math.log10(smaller)

    def join(self, a: int, b: int) -> list[int]:
        """Make group `b` a part of `a`, see `Linkage`."""
        self._volumes[a] += self._volumes[b]
        return super().join(a, b)
