"""Segmented subvolumes of a volume: their tiling, their ids, and the voxels that neighbours share."""

from __future__ import annotations

import functools
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.assembly.tables import ORIGINS, OVERLAPS, read_rows
from ffn.assembly.tiling import Tiling
from ffn.config import PART_ZYX
from ffn.contingency import add_up, count_ids, find_runs
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape
from ffn.io.block_log import Result
from ffn.io.open import identity, open_segmentation, open_volume
from ffn.io.tables import Tables
from ffn.io.volume import Volume, require_labels, require_same_voxel_size, voxel_size_of

MAX_OPEN = 16  # a subvolume and its neighbours further on; each may hold a chunk cache of 32 MiB
MAX_CACHED = 32  # subvolumes whose ids stay in memory
SLAB = 64  # sections read at a time, the depth of a chunk


class VolumePool:
    """Open segmentations on demand, and close the least recently used one when there are too many."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: OrderedDict[str, tuple[Volume, ExitStack]] = OrderedDict()

    def __enter__(self) -> VolumePool:
        """Return the pool. Leaving the ``with`` block closes all volumes."""
        return self

    def __exit__(self, *error: Any) -> None:
        """Close all volumes."""
        while self._open:
            self._close_oldest()

    def open(self, spec: str) -> Volume:
        """Return the volume of `spec`. It stays open at least until the next call."""
        if spec not in self._open:
            if len(self._open) >= self._max_open:
                self._close_oldest()
            stack = ExitStack()
            self._open[spec] = stack.enter_context(open_segmentation(spec)), stack
        self._open.move_to_end(spec)
        return self._open[spec][0]

    def _close_oldest(self) -> None:
        _, (_, stack) = self._open.popitem(last=False)
        stack.close()


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
        boxes = (self.tiling.box(index) for index in range(self.tiling.num_boxes))
        contents = hashlib.sha256("\n".join(map(identity, self.specs)).encode()).digest()
        return {
            "boxes": np.array([[*box.start, *box.stop] for box in boxes], np.int64),
            "contents": np.frombuffer(contents, np.uint8),
            "order": np.array([numbers[spec] for spec in self.specs], np.int64),
            "voxel_size": np.array(self.voxel_size_zyx_nm, np.float64),
        }

    def look_at(self, index: int, pool: VolumePool) -> Result:
        """Return the ids of a subvolume, its tables, and the voxels that it shares with later ones.

        These are the tables of `ids_of`, ``origins`` and ``overlaps`` as the subvolume has them, and ``claims`` (int64,
        (N, 7)): number of a later subvolume, own id, id there, first voxel of a cell, voxels that both have in it.
        """
        found = ids_of(pool.open(self.specs[index]), self.tiling.core(index))
        claims = [np.empty((0, 7), np.int64)]
        for other in self.tiling.overlapped_by(index):
            rows = self._compared(pool, index, other)
            claims.append(np.insert(rows, 0, other, axis=1))
        return {**found, **self._own_tables(index, found["ids"]), "claims": np.concatenate(claims)}

    def _compared(self, pool: VolumePool, index: int, other: int) -> np.ndarray:
        """Count the pairs of ids in each cell where both subvolumes are segmented: rows as of ``overlaps``."""
        cell, first, second = cell_shape(self.voxel_size_zyx_nm), self.specs[index], self.specs[other]
        blocks = self.tiling.box(index).intersect(self.tiling.box(other)).blocks(PART_ZYX)
        found = (count_in_cells(pool.open(first).read(b), pool.open(second).read(b), b.start, cell) for b in blocks)
        return add_up(np.concatenate(list(found)))

    def _own_tables(self, index: int, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return ``origins`` and ``overlaps`` of a subvolume; a cell counts where its middle is in the core."""
        spec = self.specs[index]
        origins, overlaps = (read_rows(spec, name, 6) for name in (ORIGINS, OVERLAPS))
        for name, named in ((ORIGINS, origins[:, :1]), (OVERLAPS, overlaps[:, :2])):
            missing = np.setdiff1d(named.astype(np.uint64), ids)
            if len(missing):
                raise VolumeError(
                    f"{spec}: its table {name!r} names id {missing[0]}, which no voxel has, expected ids that occur. "
                    "Were the voxels replaced? Rerun ffn segment"
                )
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
                raise VolumeError(
                    f"{spec}: covers the same box {volume.box} as {spec_of[volume.box]}, expected it once"
                )
            spec_of[volume.box] = spec
            if first is None or first.voxel_size_zyx_nm is None:  # prefer a subvolume that declares its voxel size
                first = volume
            require_same_voxel_size(volume, first)
    if first is None:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(spec_of))
    return Subvolumes(tiling, [spec_of[tiling.box(index)] for index in range(tiling.num_boxes)], voxel_size_of(first))


def ids_of(volume: Volume, core: Box) -> dict[str, np.ndarray]:
    """Return the ids of a subvolume in the order of their first voxels, so that it does not depend on their values.

    ``ids`` (uint64, without 0), ``voxels`` of each in the whole subvolume (int64), and ``in_core``: whether an id has
    voxels in the core, the part that the subvolume contributes.
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
    return {
        "ids": np.array(list(voxels), np.uint64),
        "voxels": np.array(list(voxels.values()), np.int64),
        "in_core": np.array([segment_id in in_core for segment_id in voxels], bool),
    }


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

    def read(self, block: Box, pool: VolumePool) -> np.ndarray:
        """Return the global ids (uint64) of a block, from the cores that it overlaps."""
        voxels = np.zeros(block.shape, np.uint64)
        for index, part in self._subvolumes.tiling.cores_in(block):
            local = pool.open(self._subvolumes.specs[index]).read(part)
            labelled = local != 0
            ids, numbers = self._of(index)
            rows = np.searchsorted(ids, local[labelled].astype(np.uint64))
            voxels[part.slices(block.start)][labelled] = numbers[rows]
        return voxels

    def _read(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self._first[index], self._first[index + 1]
        return self._tables.read("ids", *rows), self._tables.read("numbers", *rows)
