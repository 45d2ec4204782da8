"""Locate errors: for each, find a voxel where its parts touch or come closest, in the blocks that can hold it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree

from ffn.contingency import ContingencyTable, RowLookup, find_runs
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Read
from ffn.progress import track
from ffn.sampling.shuffle import mix

SAMPLE_SIZE = 2048  # voxels kept of a contact or part: bounds memory, and locates it to within a few voxels

Ids = tuple[int, ...]


class Parts(NamedTuple):
    """What to look for: an owner and two of its parts.

    Parameters
    ----------
    kind : {"split", "merge"}
        In a split, the owner is a body and its parts are segments; in a merger it is the other way round.
    owner, main, piece : int
        Ids.
    """

    kind: str
    owner: int
    main: int
    piece: int


class ErrorPlace(NamedTuple):
    """Where to look at an error.

    Parameters
    ----------
    position_zyx : tuple of int
        A voxel of the piece, in the middle of its contact with the main part or where the two come closest.
    touching : bool
        Whether the two share a face.
    """

    position_zyx: ZYX
    touching: bool


def find_places(
    parts: Sequence[Parts],
    truth: Read,
    segmentation: Read,
    box: Box,
    tables: Iterable[tuple[Box, ContingencyTable]],
    block_size_zyx: ZYX,
    voxel_size_zyx_nm: VoxelSize,
) -> list[ErrorPlace]:
    """Find a place to look at for each pair of parts, in the blocks that can hold one.

    Parameters
    ----------
    parts : sequence of Parts
        Pairs that occur in `box`.
    truth, segmentation : callable
        Return the labels of a box.
    box : Box
        Where to search.
    tables : iterable of (Box, ContingencyTable)
        Blocks that tile `box`, each with its pairs of body and segment.
    block_size_zyx : tuple of int
        Voxels read at a time. The result depends neither on it nor on the blocks.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, for distances.

    Returns
    -------
    list of ErrorPlace
        In the order of `parts`.

    Notes
    -----
    Of every contact, and of every part that has none, the voxels with the `SAMPLE_SIZE` smallest hashes of their
    position are kept. This is a random sample that does not depend on the order in which voxels are read.
    """
    if not parts:
        return []
    holders = _Holders(parts, tables)
    contacts = _Contacts(parts, box)
    for part in _cut(holders.of_contacts(), block_size_zyx, "locate errors"):
        wide = Box(part.start, zyx(n + 1 for n in part.stop)).intersect(box)
        contacts.look(part, wide, truth(wide), segmentation(wide))
    touching = {one: sample for one, sample in zip(parts, contacts.samples, strict=True) if len(sample.voxels)}
    apart = [pair for one in parts if one not in touching for pair in _pairs(one)]
    voxels = _PairVoxels(apart, box)
    for part in _cut(holders.of(apart), block_size_zyx, "locate parts"):
        voxels.look(part, truth(part), segmentation(part))
    return [
        _middle(touching[one], box, voxel_size_zyx_nm)
        if one in touching
        else _near_side(*voxels.of(one), box, voxel_size_zyx_nm)
        for one in parts
    ]


def _cut(blocks: list[Box], size_zyx: ZYX, description: str) -> Iterator[Box]:
    for block in track(blocks, len(blocks), description):
        yield from block.blocks(size_zyx)


class _Holders:
    """Which blocks hold which pairs of body and segment."""

    def __init__(self, parts: Sequence[Parts], tables: Iterable[tuple[Box, ContingencyTable]]) -> None:
        self._parts = parts
        self._column = {pair: i for i, pair in enumerate(dict.fromkeys(pair for one in parts for pair in _pairs(one)))}
        self._blocks: list[Box] = []
        lookup, rows = _lookup(list(self._column), 2), []
        for block, table in tables:
            self._blocks.append(block)
            rows.append(np.isin(np.arange(len(self._column)), lookup.find(table.a, table.b)))
        self._holds = np.array(rows)

    def of(self, pairs: Sequence[Ids]) -> list[Box]:
        """Return the blocks with one of these pairs."""
        columns = np.array([self._column[pair] for pair in pairs], np.int64)
        return self._chosen(self._holds[:, columns])

    def of_contacts(self) -> list[Box]:
        """Return the blocks in which two parts may touch: a face is in the block of the nearer of its two voxels."""
        numbers = {block.start: i for i, block in enumerate(self._blocks)}
        following = np.array([[numbers.get(start, -1) for start in _following(block)] for block in self._blocks])
        with_none = np.append(self._holds, np.zeros((1, self._holds.shape[1]), bool), axis=0)  # row -1: no such block
        near = self._holds | with_none[following].any(axis=1)
        main, piece = np.array([[self._column[pair] for pair in _pairs(one)] for one in self._parts]).T
        both = (self._holds[:, main] & near[:, piece]) | (self._holds[:, piece] & near[:, main])
        return self._chosen(both)

    def _chosen(self, wanted: np.ndarray) -> list[Box]:
        """Return the blocks in whose rows anything is wanted."""
        return [self._blocks[i] for i in np.flatnonzero(wanted.any(axis=1))]


def _following(block: Box) -> Iterator[ZYX]:
    """Yield the starts of the next blocks on the three axes."""
    for axis in range(3):
        yield zyx(block.stop[i] if i == axis else block.start[i] for i in range(3))


class _Sample:
    """The voxels of a set with the smallest hashes, as flat indices into the box."""

    def __init__(self) -> None:
        self.voxels = np.zeros(0, np.uint64)

    def add(self, voxels: np.ndarray) -> None:
        """Add voxels of the set."""
        everything = np.concatenate([self.voxels, voxels])
        if len(everything) > SAMPLE_SIZE:
            everything = everything[np.argpartition(mix(everything), SAMPLE_SIZE - 1)[:SAMPLE_SIZE]]
        self.voxels = everything


class _Contacts:
    """Samples of the contacts of all parts."""

    def __init__(self, parts: Sequence[Parts], box: Box) -> None:
        self._box = box
        self.samples = [_Sample() for _ in parts]
        self._numbers = {kind: [i for i, one in enumerate(parts) if one.kind == kind] for kind in ("split", "merge")}
        self._lookups = {
            kind: _lookup([(parts[i].owner, parts[i].piece, parts[i].main) for i in numbers], 3)
            for kind, numbers in self._numbers.items()
            if numbers
        }

    def look(self, block: Box, wide: Box, truth: np.ndarray, segmentation: np.ndarray) -> None:
        """Add the voxels of `block`. The arrays cover `wide`, which has one more layer on the far sides."""
        numbers = _voxel_numbers(wide, self._box)
        inner = block.slices(wide.start)
        for axis in range(3):
            near, far = list(inner), list(inner)
            last = min(block.stop[axis], wide.stop[axis] - 1) - wide.start[axis]
            near[axis], far[axis] = slice(0, last), slice(1, last + 1)
            a, b = tuple(near), tuple(far)
            same_truth, same_segment = truth[a] == truth[b], segmentation[a] == segmentation[b]
            faces = {"split": same_truth & ~same_segment, "merge": same_segment & ~same_truth}
            for kind, lookup in self._lookups.items():
                owner, part = (truth, segmentation) if kind == "split" else (segmentation, truth)
                face = faces[kind]
                columns = (owner[a][face], part[a][face], part[b][face])
                self._add(kind, lookup, columns, (numbers[a][face], numbers[b][face]))

    def _add(
        self, kind: str, lookup: RowLookup, columns: tuple[np.ndarray, ...], voxels: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Add the faces that have the piece on either side."""
        owner, near, far = columns
        for piece, main, side in ((near, far, voxels[0]), (far, near, voxels[1])):
            for key, rows in _matches(lookup, owner, piece, main):
                self.samples[self._numbers[kind][key]].add(side[rows])


class _PairVoxels:
    """Samples of the voxels of pairs of body and segment."""

    def __init__(self, pairs: Sequence[Ids], box: Box) -> None:
        self._box = box
        self.samples = {pair: _Sample() for pair in pairs}
        self._pairs = list(self.samples)
        self._lookup = _lookup(self._pairs, 2)

    def of(self, one: Parts) -> tuple[_Sample, _Sample]:
        """Return the samples of the main part and of the piece."""
        main, piece = (self.samples[pair] for pair in _pairs(one))
        return main, piece

    def look(self, block: Box, truth: np.ndarray, segmentation: np.ndarray) -> None:
        """Add the voxels of `block`."""
        starts, lengths = find_runs(truth, segmentation)
        flat = _voxel_numbers(block, self._box).ravel()
        for key, rows in _matches(self._lookup, truth.ravel()[starts], segmentation.ravel()[starts]):
            size = lengths[rows]
            within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
            self.samples[self._pairs[key]].add(flat[np.repeat(starts[rows], size) + within])


def _middle(contact: _Sample, box: Box, sides: VoxelSize) -> ErrorPlace:
    """Return the voxel of a contact that is nearest to its middle."""
    voxels = _coordinates(contact, box)
    distance = np.square((voxels - voxels.mean(axis=0)) * sides).sum(axis=1)
    best = min(range(len(voxels)), key=lambda i: (distance[i], *voxels[i]))
    return ErrorPlace(zyx(voxels[best] + box.start), True)


def _near_side(main: _Sample, piece: _Sample, box: Box, sides: VoxelSize) -> ErrorPlace:
    """Return the voxel of a piece that comes closest to the main part."""
    voxels = _coordinates(piece, box)
    distance = KDTree(_coordinates(main, box) * sides).query(voxels * sides)[0]
    return ErrorPlace(zyx(voxels[np.argmin(distance)] + box.start), False)


def _voxel_numbers(part: Box, box: Box) -> np.ndarray:
    """Flat indices of the voxels of `part` in the whole box."""
    _, ny, nx = box.shape
    z, y, x = (np.arange(s.start, s.stop, dtype=np.uint64) for s in part.slices(box.start))
    return (z[:, None, None] * np.uint64(ny) + y[:, None]) * np.uint64(nx) + x


def _coordinates(sample: _Sample, box: Box) -> np.ndarray:
    numbers = np.sort(sample.voxels).astype(np.int64)
    return np.stack(np.unravel_index(numbers, box.shape), axis=-1)


def _lookup(rows: Sequence[Ids], num_columns: int) -> RowLookup:
    return RowLookup(*np.array(rows, np.uint64).reshape(-1, num_columns).T)


def _matches(lookup: RowLookup, *columns: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every row of the table that occurs in `columns`, with the rows of `columns` where it does."""
    found = lookup.find(*columns)
    rows = np.flatnonzero(found >= 0)
    rows = rows[np.argsort(found[rows], kind="stable")]
    for start, length in zip(*find_runs(found[rows]), strict=True):
        yield int(found[rows[start]]), rows[start : start + length]


def _pairs(one: Parts) -> tuple[Ids, Ids]:
    """Body and segment of the main part and of the piece."""
    main, piece = ((one.owner, part) if one.kind == "split" else (part, one.owner) for part in (one.main, one.piece))
    return main, piece
