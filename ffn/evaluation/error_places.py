"""Locate errors: for each, find a voxel where its parts touch or come closest, in one pass over the blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.spatial import KDTree

from ffn.contingency import RowLookup, find_runs
from ffn.geometry import ZYX, Box, zyx
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
    parts: Sequence[Parts], truth: Read, segmentation: Read, box: Box, block_size_zyx: ZYX
) -> list[ErrorPlace]:
    """Find a place to look at for each pair of parts.

    Parameters
    ----------
    parts : sequence of Parts
        Pairs that occur in `box`.
    truth, segmentation : callable
        Return the labels of a box.
    box : Box
        Where to search.
    block_size_zyx : tuple of int
        Voxels read at a time. The result does not depend on it.

    Returns
    -------
    list of ErrorPlace
        In the order of `parts`.

    Notes
    -----
    Of every contact and every part, the voxels with the `SAMPLE_SIZE` smallest hashes of their position are kept. This
    is a random sample that does not depend on the order in which voxels are read.
    """
    if not parts:
        return []
    search = _Search(parts, box)
    blocks = list(box.blocks(block_size_zyx))
    for block in track(blocks, len(blocks), "locate errors"):
        wide = Box(block.start, zyx(n + 1 for n in block.stop)).intersect(box)
        search.look(block, wide, truth(wide), segmentation(wide))
    return [search.place(i) for i in range(len(parts))]


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


class _Search:
    """Samples of all contacts and parts, filled block by block."""

    def __init__(self, parts: Sequence[Parts], box: Box) -> None:
        self._box = box
        self._parts = parts
        self._pairs = list(
            dict.fromkeys(pair for one in parts for pair in (_pair(one, one.main), _pair(one, one.piece)))
        )
        self._pair_lookup = _lookup(self._pairs)
        self._in_pairs = {pair: _Sample() for pair in self._pairs}
        self._contacts = [_Sample() for _ in parts]
        self._numbers = {kind: [i for i, one in enumerate(parts) if one.kind == kind] for kind in ("split", "merge")}
        self._lookups = {
            kind: _lookup([(parts[i].owner, parts[i].piece, parts[i].main) for i in numbers])
            for kind, numbers in self._numbers.items()
            if numbers
        }

    def look(self, block: Box, wide: Box, truth: np.ndarray, segmentation: np.ndarray) -> None:
        """Add the voxels of `block`. The arrays cover `wide`, which has one more layer on the far sides."""
        numbers = self._voxel_numbers(wide)
        inner = block.slices(wide.start)
        self._look_for_parts(truth[inner], segmentation[inner], numbers[inner])
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
                self._add_contacts(kind, lookup, columns, (numbers[a][face], numbers[b][face]))

    def place(self, index: int) -> ErrorPlace:
        """Return the place of a pair. Call it after all blocks."""
        one = self._parts[index]
        contact = self._coordinates(self._contacts[index])
        if len(contact):
            distance = np.square(contact - contact.mean(axis=0)).sum(axis=1)
            best = min(range(len(contact)), key=lambda i: (distance[i], *contact[i]))
            return ErrorPlace(zyx(contact[best] + self._box.start), True)
        piece = self._coordinates(self._in_pairs[_pair(one, one.piece)])
        main = self._coordinates(self._in_pairs[_pair(one, one.main)])
        return ErrorPlace(zyx(piece[np.argmin(KDTree(main).query(piece)[0])] + self._box.start), False)

    def _look_for_parts(self, truth: np.ndarray, segmentation: np.ndarray, numbers: np.ndarray) -> None:
        starts, lengths = find_runs(truth, segmentation)
        flat = numbers.ravel()
        for key, rows in _matches(self._pair_lookup, truth.ravel()[starts], segmentation.ravel()[starts]):
            size = lengths[rows]
            within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
            self._in_pairs[self._pairs[key]].add(flat[np.repeat(starts[rows], size) + within])

    def _add_contacts(
        self, kind: str, lookup: RowLookup, columns: tuple[np.ndarray, ...], voxels: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """Add the faces that have the piece on either side."""
        owner, near, far = columns
        for piece, main, side in ((near, far, voxels[0]), (far, near, voxels[1])):
            for key, rows in _matches(lookup, owner, piece, main):
                self._contacts[self._numbers[kind][key]].add(side[rows])

    def _voxel_numbers(self, wide: Box) -> np.ndarray:
        """Flat indices of the voxels of `wide` in the whole box."""
        _, ny, nx = self._box.shape
        z, y, x = (np.arange(s.start, s.stop, dtype=np.uint64) for s in wide.slices(self._box.start))
        return (z[:, None, None] * np.uint64(ny) + y[:, None]) * np.uint64(nx) + x

    def _coordinates(self, sample: _Sample) -> np.ndarray:
        numbers = np.sort(sample.voxels).astype(np.int64)
        return np.stack(np.unravel_index(numbers, self._box.shape), axis=-1)


def _lookup(rows: Sequence[Ids]) -> RowLookup:
    return RowLookup(*(np.array(column, np.uint64) for column in zip(*rows, strict=True)))


def _matches(lookup: RowLookup, *columns: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield every row of the table that occurs in `columns`, with the rows of `columns` where it does."""
    found = lookup.find(*columns)
    rows = np.flatnonzero(found >= 0)
    rows = rows[np.argsort(found[rows], kind="stable")]
    for start, length in zip(*find_runs(found[rows]), strict=True):
        yield int(found[rows[start]]), rows[start : start + length]


def _pair(one: Parts, part: int) -> Ids:
    """Body and segment of a part."""
    return (one.owner, part) if one.kind == "split" else (part, one.owner)
