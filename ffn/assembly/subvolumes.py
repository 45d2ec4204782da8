"""Segmented subvolumes of a volume: their ids, the voxels that neighbours share, and all ids as nodes of one graph."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ffn.assembly.contacts import ORIGINS, OVERLAPS, read_rows
from ffn.config import PART_ZYX
from ffn.contingency import RowLookup, add_up, count_ids, find_runs
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, Grid, VoxelSize, cell_shape, zyx
from ffn.io import scratch
from ffn.io.block_log import Result
from ffn.io.open import identity, open_segmentation, open_volume
from ffn.io.scratch import ScratchRows, Tables
from ffn.io.volume import Volume, require_labels, require_same_voxel_size, voxel_size_of


class Tiling(Grid):
    """Boxes as `ffn.geometry.tile` makes them, numbered in zyx order: starts and stops of ranges ascend, without gaps.

    Examples
    --------
    >>> tiling = Tiling.of([Box((0, 0, 0), (6, 4, 4)), Box((4, 0, 0), (10, 4, 4))])
    >>> str(tiling.core(0)), str(tiling.core(1)), list(tiling.overlapped_by(0))
    ('0:5,0:4,0:4', '5:10,0:4,0:4', [1])
    """

    @classmethod
    def of(cls, boxes: Sequence[Box]) -> Tiling:
        """Return the tiling that distinct `boxes` form, in any order."""
        tiling = cls([sorted({(box.start[axis], box.stop[axis]) for box in boxes}) for axis in range(3)])
        if len(tiling) != len(boxes):
            present = set(boxes)
            raise VolumeError(_hole(len(boxes), f"none is at {next(box for box in tiling if box not in present)}"))
        for axis, ranges in zip("zyx", tiling.ranges_zyx, strict=True):
            for (start, stop), (next_start, next_stop) in itertools.pairwise(ranges):
                if not (start < next_start <= stop < next_stop):
                    found = f"{start}:{stop} is followed by {next_start}:{next_stop} on axis {axis}"
                    raise VolumeError(_hole(len(boxes), found))
        return tiling

    @property
    def shape(self) -> ZYX:
        """Number of boxes along each axis."""
        return zyx(map(len, self.ranges_zyx))

    @property
    def hull(self) -> Box:
        """The box that all boxes cover together."""
        return Box(zyx(ranges[0][0] for ranges in self.ranges_zyx), zyx(ranges[-1][1] for ranges in self.ranges_zyx))

    def core(self, index: int) -> Box:
        """Return the part of a box that it contributes: up to the middle of the overlap with each neighbour.

        Cores are disjoint and cover the hull.
        """
        place = self._place(index)
        starts = zyx(cuts[i] for cuts, i in zip(self._cuts, place, strict=True))
        return Box(starts, zyx(cuts[i + 1] for cuts, i in zip(self._cuts, place, strict=True)))

    def overlapped_by(self, index: int) -> Iterator[int]:
        """Yield the later boxes that share voxels with a box, in ascending order."""
        near = (ranges[place] for ranges, place in zip(self._near, self._place(index), strict=True))
        for place in itertools.product(*near):
            if (number := self._number(place)) > index:
                yield number

    def overlap_shares(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the depth of the overlaps of boxes, as a share of the first ones' sides."""
        places = (np.unravel_index(numbers, self.shape) for numbers in (first, second))
        shares = []
        for ranges, of_first, of_second in zip(self.ranges_zyx, *places, strict=True):
            starts, stops = np.array(ranges).T
            depth = np.minimum(stops[of_first], stops[of_second]) - np.maximum(starts[of_first], starts[of_second])
            shares.append(depth / (stops - starts)[of_first])
        return np.minimum.reduce(shares)

    def cores_in(self, block: Box) -> Iterator[tuple[int, Box]]:
        """Yield the number of every box whose core overlaps `block`, and the part that does."""
        for place in itertools.product(*map(_cells, self._cuts, block.start, block.stop)):
            number = self._number(place)
            part = self.core(number).intersect(block)
            if not part.is_empty:
                yield number, part

    @cached_property
    def _cuts(self) -> list[np.ndarray]:
        """Borders between cores along each axis, with those of the hull at both ends."""
        inner = ([(b[0] + a[1]) // 2 for a, b in itertools.pairwise(ranges)] for ranges in self.ranges_zyx)
        return [np.array([r[0][0], *cuts, r[-1][1]]) for r, cuts in zip(self.ranges_zyx, inner, strict=True)]

    @cached_property
    def _near(self) -> list[list[range]]:
        return [_neighbours(ranges) for ranges in self.ranges_zyx]

    def _place(self, index: int) -> ZYX:
        _, y, x = self.shape
        return index // (y * x), index // x % y, index % x

    def _number(self, place: tuple[int, ...]) -> int:
        _, y, x = self.shape
        return (place[0] * y + place[1]) * x + place[2]


def _hole(num_boxes: int, found: str) -> str:
    return (
        f"reconcile: of the {num_boxes} subvolumes {found}, expected a tiling without holes. "
        "Is a subvolume missing, or from another tiling?"
    )


def _neighbours(ranges: Sequence[tuple[int, int]]) -> list[range]:
    """For each range of an axis, the ranges that share voxels with it, including itself."""
    starts, stops = np.array(ranges).T
    first, last = np.searchsorted(stops, starts, "right"), np.searchsorted(starts, stops, "left")
    return [range(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _cells(cuts: np.ndarray, start: int, stop: int) -> range:
    """Return the cells between `cuts` that overlap start … stop."""
    first, last = np.searchsorted(cuts, start, "right") - 1, np.searchsorted(cuts, stop, "left")
    return range(max(0, int(first)), min(int(last), len(cuts) - 1))


MAX_OPEN = 16  # a subvolume and its neighbours further on; each may hold a chunk cache of 32 MiB
MAX_CACHED = 32  # subvolumes whose ids stay in memory
SLAB = 64  # sections read at a time, the depth of a chunk
COLUMNS: dict[str, tuple[tuple[int, ...], type]] = {
    "ids": ((), np.uint64),
    "voxels": ((), np.int64),
    "in_core": ((), np.bool_),
    "claims": ((7,), np.int64),
    "origins": ((6,), np.int64),
    "overlaps": ((6,), np.int64),
}


@dataclass(frozen=True)
class Subvolumes:
    """Segmented subvolumes of one tiling."""

    tiling: Tiling
    specs: list[str]  # in the order of the tiling
    voxel_size_zyx_nm: VoxelSize

    @classmethod
    def read(cls, tables: Tables, specs: Sequence[str]) -> Subvolumes:
        """Return the subvolumes that `tables` recorded for the same `specs`."""
        boxes = [Box((z, y, x), (d, h, w)) for z, y, x, d, h, w in tables.read("boxes").tolist()]
        z, y, x = tables.read("voxel_size").tolist()
        return cls(Tiling.of(boxes), [specs[number] for number in tables.read("order").tolist()], (z, y, x))

    def tables(self, specs: Sequence[str]) -> dict[str, np.ndarray]:
        """Return tables from which jobs know the tiling of `specs` without opening them all.

        They change with the content of a subvolume.
        """
        numbers = {spec: number for number, spec in enumerate(specs)}
        contents = hashlib.sha256("\n".join(map(identity, self.specs)).encode()).digest()
        return {
            "boxes": np.array([[*box.start, *box.stop] for box in self.tiling], np.int64),
            "contents": np.frombuffer(contents, np.uint8),
            "order": np.array([numbers[spec] for spec in self.specs], np.int64),
            "voxel_size": np.array(self.voxel_size_zyx_nm, np.float64),
        }

    def volume(self, index: int) -> Volume:
        """Open a subvolume; it stays open as one of the last `MAX_OPEN`."""
        return self._opened(index)[1]

    @cached_property
    def _opened(self) -> Callable[[int], tuple[ExitStack, Volume]]:
        def opened(index: int) -> tuple[ExitStack, Volume]:
            stack = ExitStack()  # closes the volume when it leaves the cache
            return stack, stack.enter_context(open_segmentation(self.specs[index]))

        return functools.lru_cache(MAX_OPEN)(opened)

    def look_at(self, index: int) -> Result:
        """Return the ids of a subvolume, its tables, and the voxels that it shares with later ones.

        These are the tables of `ids_of`, ``origins`` and ``overlaps`` as the subvolume has them, and ``claims`` (int64,
        (N, 7)): number of a later subvolume, own id, id there, first voxel of a cell, voxels that both have in it.
        """
        found = ids_of(self.volume(index), self.tiling.core(index))
        later = [np.insert(self._compared(index, n), 0, n, axis=1) for n in self.tiling.overlapped_by(index)]
        return {**found, **self._own_tables(index), "claims": np.concatenate([np.empty((0, 7), np.int64), *later])}

    def _compared(self, index: int, other: int) -> np.ndarray:
        """Count the pairs of ids in each cell where both subvolumes are segmented: rows as of ``overlaps``."""
        cell, a, b = cell_shape(self.voxel_size_zyx_nm), self.volume(index), self.volume(other)
        parts = self.tiling[index].intersect(self.tiling[other]).blocks(PART_ZYX)
        return add_up(np.concatenate([count_in_cells(a.read(p), b.read(p), p.start, cell) for p in parts]))

    def _own_tables(self, index: int) -> dict[str, np.ndarray]:
        """Return ``origins`` and ``overlaps`` of a subvolume; a cell counts where its middle is in the core."""
        origins, overlaps = (read_rows(self.specs[index], name, 6) for name in (ORIGINS, OVERLAPS))
        hull, core = self.tiling.hull, self.tiling.core(index)
        middle = overlaps[:, 2:5] + np.array(cell_shape(self.voxel_size_zyx_nm)) // 2
        in_core = core.holds(np.clip(middle, hull.start, np.array(hull.stop) - 1))
        return {ORIGINS: origins, OVERLAPS: overlaps[in_core]}


def open_subvolumes(specs: Sequence[str]) -> Subvolumes:
    """Find the tiling that subvolumes form, in any order, and check that they fit together."""
    spec_of: dict[Box, str] = {}
    first: Volume | None = None
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in spec_of:
                raise VolumeError(f"{spec}: covers {volume.box} as {spec_of[volume.box]} does, expected it once")
            spec_of[volume.box] = spec
            if first is None or first.voxel_size_zyx_nm is None:  # prefer a subvolume that declares its voxel size
                first = volume
            require_same_voxel_size(volume, first)
    if first is None:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(spec_of))
    return Subvolumes(tiling, [spec_of[box] for box in tiling], voxel_size_of(first))


def ids_of(volume: Volume, core: Box) -> dict[str, np.ndarray]:
    """Return the ids of a subvolume in the order of their first voxels, so that it does not depend on their values.

    ``ids`` (uint64, without 0), ``voxels`` of each in the whole subvolume (int64), and ``in_core``: whether an id has
    voxels in the core, the part that the subvolume contributes.
    """
    ids, voxels, in_core = [np.zeros(1, np.uint64)], [np.zeros(1, np.int64)], [np.zeros(1, np.uint64)]
    for slab in volume.box.blocks((SLAB, *volume.box.shape[1:])):
        labels, part = volume.read(slab), core.intersect(slab)
        found, counts = count_ids(labels)
        ids.append(found)
        voxels.append(counts)
        if not part.is_empty:
            in_core.append(count_ids(labels[part.slices(slab.start)])[0])
    known, first, row = np.unique(np.concatenate(ids), return_index=True, return_inverse=True)
    order = np.argsort(first)[1:]  # without 0
    total = np.bincount(row, np.concatenate(voxels)).astype(np.int64)
    return {"ids": known[order], "voxels": total[order], "in_core": np.isin(known, np.concatenate(in_core))[order]}


def count_in_cells(a: np.ndarray, b: np.ndarray, offset_zyx: ZYX, cell_zyx: ZYX) -> np.ndarray:
    """Count the voxels of every pair of ids in every cell, without voxels where one is 0.

    `offset_zyx` is the first voxel of both arrays. The result (int64, (N, 6)) has id in a, id in b, first voxel of the
    cell, voxels.
    """
    cells_along_x = np.broadcast_to((np.arange(a.shape[2]) + offset_zyx[2]) // cell_zyx[2], a.shape)
    starts, lengths = find_runs(a, b, cells_along_x, within_rows=True)
    ids = np.stack([a.ravel()[starts], b.ravel()[starts]], axis=1).astype(np.int64)
    cells = (np.stack(np.unravel_index(starts, a.shape), axis=1) + offset_zyx) // cell_zyx * cell_zyx
    return add_up(np.column_stack([ids, cells, lengths])[(ids != 0).all(axis=1)])


class GlobalIds:
    """The global ids of subvolumes, read as they are needed.

    The tables are ``ids`` (uint64, ascending within each subvolume), their global ``numbers`` (uint64), and the
    ``first`` row of each subvolume.
    """

    def __init__(self, subvolumes: Subvolumes, tables: Tables) -> None:
        self._subvolumes = subvolumes
        self._tables = tables
        self._first = tables.read("first")
        self._of = functools.lru_cache(MAX_CACHED)(self._read)

    def read(self, block: Box) -> np.ndarray:
        """Return the global ids (uint64) of a block, from the cores that it overlaps."""
        voxels = np.zeros(block.shape, np.uint64)
        for index, part in self._subvolumes.tiling.cores_in(block):
            local = self._subvolumes.volume(index).read(part)
            labelled = local != 0
            ids, numbers = self._of(index)
            rows = np.searchsorted(ids, local[labelled].astype(np.uint64))
            voxels[part.slices(block.start)][labelled] = numbers[rows]
        return voxels

    def _read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._first[index], self._first[index + 1]
        return self._tables.read("ids", *rows), self._tables.read("numbers", *rows)


class SubvolumeTables:
    """What `Subvolumes.look_at` returned for each subvolume, one below the other, read a few subvolumes at a time.

    The tables are on a disk, in `folder`, and gone at the end.
    """

    def __init__(self, of_each: Iterable[Result], folder: Path | None = None) -> None:
        self._tables = {name: ScratchRows(*kind, folder) for name, kind in COLUMNS.items()}
        ends: dict[str, list[int]] = {name: [0] for name in COLUMNS}
        for found in of_each:
            for name, table in self._tables.items():
                table.append(found[name])
                ends[name].append(len(table))
        self._first = {name: np.array(numbers) for name, numbers in ends.items()}

    def first(self, name: str) -> np.ndarray:
        """Return the first row of each subvolume in a table, and the number of rows: int64 of shape (S + 1,)."""
        return self._first[name]

    def whole(self, name: str) -> np.ndarray:
        """Return a table with the rows of all subvolumes."""
        return self._tables[name][:]

    def batches(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield a table a few whole subvolumes at a time: the number of the subvolume (int64) of each row, the rows."""
        first, start = self._first[name], 0
        while start < len(first) - 1:
            stop = max(start + 1, int(np.searchsorted(first, first[start] + scratch.ROWS_AT_ONCE, "right") - 1))
            numbers = np.repeat(np.arange(start, stop), np.diff(first[start : stop + 1]))
            yield numbers, self._tables[name][int(first[start]) : int(first[stop])]
            start = stop


@dataclass(frozen=True)
class LocalIds:
    """Ids of all subvolumes as nodes, numbered consecutively in the order of subvolumes and of their tables."""

    first: np.ndarray  # int64, first node of each subvolume; the last entry is the number of nodes
    voxels: np.ndarray  # int64, of each node in its whole subvolume
    in_core: np.ndarray  # bool, whether a node has voxels in the core of its subvolume
    subvolumes: np.ndarray  # int64, number of the subvolume that each node is in
    ids: np.ndarray  # uint64, its id there
    lookup: RowLookup  # finds the node of a subvolume and an id in it

    @classmethod
    def of(cls, tables: SubvolumeTables) -> LocalIds:
        """Return the nodes of all subvolumes."""
        first, ids = tables.first("ids"), tables.whole("ids")
        subvolumes = np.repeat(np.arange(len(first) - 1), np.diff(first))
        return cls(first, tables.whole("voxels"), tables.whole("in_core"), subvolumes, ids, RowLookup(subvolumes, ids))
