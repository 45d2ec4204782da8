"""The costliest splits and mergers, and a voxel at which to look at each: for close-ups, links and tables."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import binary_dilation, generate_binary_structure
from scipy.spatial import KDTree

from ffn.contingency import ContingencyTable, RowLookup, find_runs
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.volume import Read
from ffn.progress import track
from ffn.sampling.shuffle import mix

SAMPLE_SIZE = 2048  # voxels kept of a contact or part: bounds memory, and locates it to within a few voxels
CSV_COLUMNS = ("name", "kind", "z", "y", "x", "truth_ids", "segment_ids", "voxels", "voi")
KINDS = ("split", "merge")

Ids = tuple[int, ...]


class Parts(NamedTuple):
    """An owner and two of its parts: segments of a body in a split, bodies of a segment in a merger."""

    kind: str
    owner: int
    main: int
    piece: int

    @property
    def pairs(self) -> tuple[Ids, Ids]:
        """Body and segment of the main part and of the piece."""
        main, piece = ((self.owner, p) if self.kind == "split" else (p, self.owner) for p in (self.main, self.piece))
        return main, piece


class ErrorPair(NamedTuple):
    """A piece that should be joined to the main part or separated from it, and the bits of VOI that this would save."""

    name: str
    parts: Parts
    voxels: int
    voi: float


class ErrorPlace(NamedTuple):
    """A voxel of the piece, in the middle of its contact with the main part, or where the two come closest."""

    position_zyx: ZYX
    touching: bool


class Search(NamedTuple):
    """Where to look for errors, and how many voxels to read at a time."""

    truth: Read
    segmentation: Read
    box: Box
    block_size_zyx: ZYX
    voxel_size_zyx_nm: VoxelSize


def worst_errors(table: ContingencyTable, count: int) -> list[ErrorPair]:
    """List at most `count` splits, then mergers, whose correction would save the most VOI; each by falling VOI."""
    both = table.foreground()
    splits = _pieces("split", both.a, both.b, both.voxels, count)
    return [*splits, *_pieces("merge", both.b, both.a, both.voxels, count)]


def _pieces(kind: str, owners: np.ndarray, parts: np.ndarray, voxels: np.ndarray, count: int) -> Iterator[ErrorPair]:
    """Yield the costliest parts that are not the largest of their owner."""
    order = np.lexsort((parts, -voxels, owners))  # the first row of each owner is its main part
    owners, parts, voxels = owners[order], parts[order], voxels[order]
    main = np.repeat(*find_runs(owners))
    saved = _saving(voxels[main].astype(np.float64), voxels.astype(np.float64)) / max(voxels.sum(), 1)
    pieces = np.flatnonzero(main != np.arange(len(main)))
    worst = pieces[np.argsort(-saved[pieces], kind="stable")[:count]]
    for rank, i in enumerate(worst, start=1):
        found = Parts(kind, int(owners[i]), int(parts[main[i]]), int(parts[i]))
        yield ErrorPair(f"{kind}-{rank:02d}", found, int(voxels[i]), float(saved[i]))


def _saving(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits times voxels saved when parts of a and b voxels become one."""
    return (a + b) * np.log2(a + b) - a * np.log2(a) - b * np.log2(b)


def error_entries(errors: list[ErrorPair], places: list[ErrorPlace]) -> list[dict[str, Any]]:
    """Return errors and their places as entries of a score file; of the ids, that of the main part comes first."""
    entries = []
    for (name, parts, voxels, voi), place in zip(errors, places, strict=True):
        ids = [parts.owner], [parts.main, parts.piece]
        truth, segments = ids if parts.kind == "split" else ids[::-1]
        found = {"name": name, "kind": parts.kind, "position_zyx": list(place.position_zyx), "touching": place.touching}
        entries.append({**found, "truth_ids": truth, "segment_ids": segments, "voxels": voxels, "voi": voi})
    return entries


def worst_of_each_kind(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the first `count` splits and the first `count` mergers of a score file."""
    return [entry for kind in KINDS for entry in [one for one in entries if one["kind"] == kind][:count]]


def errors_csv(entries: list[dict[str, Any]]) -> str:
    """Return the entries of a score file as CSV. Several ids in one column are separated by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for entry in entries:
        names = entry["name"], entry["kind"]
        ids = (" ".join(map(str, entry[key])) for key in ("truth_ids", "segment_ids"))
        writer.writerow([*names, *entry["position_zyx"], *ids, entry["voxels"], f"{entry['voi']:.6g}"])
    return text.getvalue()


def find_places(
    parts: Sequence[Parts], tables: Iterable[tuple[Box, ContingencyTable]], search: Search
) -> list[ErrorPlace]:
    """Find a place to look at for each pair of parts, in the blocks that can hold one.

    Of every contact, and of every part that has none, the voxels with the `SAMPLE_SIZE` smallest hashes of their
    position are kept: a random sample that depends neither on the blocks nor on the voxels read at a time.

    Parameters
    ----------
    parts : sequence of Parts
        Pairs that occur in the box.
    tables : iterable of (Box, ContingencyTable)
        Blocks that tile the box, each with its pairs of body and segment.
    search : Search
        Where to look.
    """
    if not parts:
        return []
    holders = _Holders(parts, tables)
    contacts = _sample_contacts(parts, holders.of_contacts(parts), search)
    apart = [pair for one, voxels in zip(parts, contacts, strict=True) if not len(voxels) for pair in one.pairs]
    voxels_of = _sample_pairs(list(dict.fromkeys(apart)), holders.of(apart), search)
    return [
        _middle(contact, search) if len(contact) else _near_side([voxels_of[pair] for pair in one.pairs], search)
        for one, contact in zip(parts, contacts, strict=True)
    ]


class _Holders:
    """Which blocks hold which pairs of body and segment."""

    def __init__(self, parts: Sequence[Parts], tables: Iterable[tuple[Box, ContingencyTable]]) -> None:
        pairs = list(dict.fromkeys(pair for one in parts for pair in one.pairs))
        self._column = {pair: i for i, pair in enumerate(pairs)}
        self._blocks: list[Box] = []
        lookup, rows = _lookup(pairs), []
        for block, table in tables:
            self._blocks.append(block)
            rows.append(np.isin(np.arange(len(pairs)), lookup.find(table.a, table.b)))
        starts = np.array([block.start for block in self._blocks]).T
        self._cells = tuple(np.unique(axis, return_inverse=True)[1] for axis in starts)  # of a grid of the blocks
        self._holds = np.zeros((*(cells.max() + 1 for cells in self._cells), len(pairs)), bool)
        self._holds[self._cells] = rows

    def of(self, pairs: Sequence[Ids]) -> list[Box]:
        """Return the blocks with one of these pairs."""
        return self._where(self._holds[..., [self._column[pair] for pair in pairs]])

    def of_contacts(self, parts: Sequence[Parts]) -> list[Box]:
        """Return the blocks that hold a piece whose main part is in the block or in one next to it."""
        main, piece = np.array([[self._column[pair] for pair in one.pairs] for one in parts]).T
        near = np.empty_like(self._holds)
        binary_dilation(self._holds, generate_binary_structure(3, 1)[..., None], output=near)
        return self._where(self._holds[..., piece] & near[..., main])

    def _where(self, wanted: np.ndarray) -> list[Box]:
        return [self._blocks[i] for i in np.flatnonzero(wanted[self._cells].any(axis=-1))]


class _Samples:
    """For each row of ids, the voxels with the smallest hashes, as flat indices into the box."""

    def __init__(self, rows: Sequence[Ids]) -> None:
        self.voxels = [np.zeros(0, np.uint64) for _ in rows]

    def add(self, rows: np.ndarray, voxels: np.ndarray) -> None:
        """Add voxels to the rows of these numbers; -1 is none."""
        rows, voxels = rows[rows >= 0], voxels[rows >= 0]
        for row in np.unique(rows):
            everything = np.concatenate([self.voxels[row], voxels[rows == row]])
            if len(everything) > SAMPLE_SIZE:
                everything = everything[np.argpartition(mix(everything), SAMPLE_SIZE - 1)[:SAMPLE_SIZE]]
            self.voxels[row] = everything


def _sample_contacts(parts: Sequence[Parts], blocks: list[Box], search: Search) -> list[np.ndarray]:
    """Return for each error voxels of its piece that share a face with the main part, once for each such face."""
    of_kind = {kind: [i for i, one in enumerate(parts) if one.kind == kind] for kind in KINDS}
    rows = {kind: [(parts[i].owner, parts[i].piece, parts[i].main) for i in of_kind[kind]] for kind in KINDS}
    lookups = {kind: _lookup(ids, 3) for kind, ids in rows.items()}
    samples = {kind: _Samples(ids) for kind, ids in rows.items()}
    for block in _cut(blocks, search, "locate errors"):
        wide = block.grow((1, 1, 1)).intersect(search.box)  # a piece in the block may touch a main part outside
        truth, segments, voxels = search.truth(wide), search.segmentation(wide), _voxel_numbers(wide, search.box)
        inside = np.zeros(wide.shape, bool)
        inside[block.slices(wide.start)] = True
        for axis in range(3):
            near, far = list(block.slices(wide.start)), list(block.slices(wide.start))
            near[axis], far[axis] = slice(None, -1), slice(1, None)
            a, b = tuple(near), tuple(far)
            same_truth, same_segment = truth[a] == truth[b], segments[a] == segments[b]
            for kind, owner, part, face in (
                ("split", truth, segments, same_truth & ~same_segment),
                ("merge", segments, truth, same_segment & ~same_truth),
            ):
                of_a, of_b, owners = part[a][face], part[b][face], owner[a][face]
                for piece, main, side in ((of_a, of_b, a), (of_b, of_a, b)):
                    found = np.where(inside[side][face], lookups[kind].find(owners, piece, main), -1)
                    samples[kind].add(found, voxels[side][face])
    numbered = {i: voxels for kind in KINDS for i, voxels in zip(of_kind[kind], samples[kind].voxels, strict=True)}
    return [numbered[i] for i in range(len(parts))]


def _sample_pairs(pairs: list[Ids], blocks: list[Box], search: Search) -> dict[Ids, np.ndarray]:
    """Return voxels of each pair of body and segment."""
    samples, lookup = _Samples(pairs), _lookup(pairs)
    for block in _cut(blocks, search, "locate parts"):
        truth, segments = search.truth(block), search.segmentation(block)
        starts, lengths = find_runs(truth, segments)
        rows = np.repeat(lookup.find(truth.ravel()[starts], segments.ravel()[starts]), lengths)
        samples.add(rows, _voxel_numbers(block, search.box).ravel())
    return dict(zip(pairs, samples.voxels, strict=True))


def _cut(blocks: list[Box], search: Search, description: str) -> Iterator[Box]:
    parts = (block.blocks(search.block_size_zyx) for block in track(blocks, len(blocks), description))
    return itertools.chain.from_iterable(parts)


def _lookup(rows: Sequence[Ids], num_columns: int = 2) -> RowLookup:
    return RowLookup(*np.array(rows, np.uint64).reshape(-1, num_columns).T)


def _middle(contact: np.ndarray, search: Search) -> ErrorPlace:
    """Return the voxel of a contact that is nearest to its middle."""
    voxels = _coordinates(contact, search.box)
    distance = np.square((voxels - voxels.mean(axis=0)) * search.voxel_size_zyx_nm).sum(axis=1)
    best = min(range(len(voxels)), key=lambda i: (distance[i], *voxels[i]))
    return ErrorPlace(zyx(voxels[best] + search.box.start), True)


def _near_side(main_and_piece: Sequence[np.ndarray], search: Search) -> ErrorPlace:
    """Return the voxel of a piece that comes closest to the main part."""
    sides = search.voxel_size_zyx_nm
    main, voxels = (_coordinates(sample, search.box) for sample in main_and_piece)
    distance = KDTree(main * sides).query(voxels * sides)[0]
    return ErrorPlace(zyx(voxels[np.argmin(distance)] + search.box.start), False)


def _voxel_numbers(part: Box, box: Box) -> np.ndarray:
    """Flat indices of the voxels of `part` in the whole box."""
    _, ny, nx = box.shape
    z, y, x = (np.arange(s.start, s.stop, dtype=np.uint64) for s in part.slices(box.start))
    return (z[:, None, None] * np.uint64(ny) + y[:, None]) * np.uint64(nx) + x


def _coordinates(voxels: np.ndarray, box: Box) -> np.ndarray:
    return np.stack(np.unravel_index(np.sort(voxels).astype(np.int64), box.shape), axis=-1)
