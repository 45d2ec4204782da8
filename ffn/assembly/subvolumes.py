"""The subvolumes that flood filling made of a volume: how they tile it, what is in each, and what neighbours share."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ffn.assembly.carried import tables_of
from ffn.assembly.nodes import scan
from ffn.assembly.pool import VolumePool
from ffn.assembly.tiling import Tiling
from ffn.contingency import add_up, find_runs
from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, cell_shape
from ffn.io.blocks import Learnt
from ffn.io.open import identity, open_volume
from ffn.io.steps import StepTables
from ffn.io.volume import Volume, require_labels, require_same_voxel_size, voxel_size_of

MAX_CACHED = 32  # subvolumes whose ids stay in memory


@dataclass(frozen=True)
class Subvolumes:
    """Segmented subvolumes of one tiling."""

    tiling: Tiling  # their boxes
    specs: list[str]  # where they are, in the order of the tiling
    voxel_size_zyx_nm: VoxelSize  # sides of a voxel

    @classmethod
    def read(cls, tables: StepTables, specs: Sequence[str]) -> Subvolumes:
        """Return what `tables` recorded of the same `specs`, see `tables`."""
        boxes = [Box((z, y, x), (d, h, w)) for z, y, x, d, h, w in tables.read("boxes").tolist()]
        z, y, x = tables.read("voxel_size").tolist()
        return cls(Tiling.of(boxes), [specs[number] for number in tables.read("order").tolist()], (z, y, x))

    def tables(self, specs: Sequence[str]) -> dict[str, np.ndarray]:
        """Return tables from which jobs know the tiling without opening all `specs`, which they are given.

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

    def look_at(self, index: int, pool: VolumePool, block_size_zyx: ZYX) -> Learnt:
        """Return all that a subvolume adds to what is known of the whole volume."""
        spec = self.specs[index]
        found = scan(pool.open(spec), self.tiling.core(index))
        claims = [np.empty((0, 7), np.int64)]
        for other in self.tiling.overlapped_by(index):
            box = self.tiling.box(index).intersect(self.tiling.box(other))
            rows = self._compared(pool, spec, self.specs[other], box, block_size_zyx)
            claims.append(np.insert(rows, 0, other, axis=1))
        own = tables_of(spec, self.tiling, index, self.voxel_size_zyx_nm, found.ids)
        return {**vars(found), **own, "claims": np.concatenate(claims)}

    def _compared(self, pool: VolumePool, first: str, second: str, box: Box, block_size_zyx: ZYX) -> np.ndarray:
        """Count the pairs of ids in each cell of `box` where both are segmented: rows as of ``overlaps``."""
        cell, blocks = cell_shape(self.voxel_size_zyx_nm), box.blocks(block_size_zyx)
        found = (count_in_cells(pool.open(first).read(b), pool.open(second).read(b), b.start, cell) for b in blocks)
        return add_up(np.concatenate(list(found)))


def open_subvolumes(specs: Sequence[str]) -> Subvolumes:
    """Find the tiling that subvolumes form, and check it."""
    places: dict[Box, str] = {}
    first: Volume | None = None
    for spec in specs:
        with open_volume(spec) as volume:
            require_labels(volume)
            if volume.box in places:
                raise VolumeError(f"{spec}: covers the same box {volume.box} as {places[volume.box]}, expected it once")
            places[volume.box] = spec
            if first is None or first.voxel_size_zyx_nm is None:  # prefer a subvolume that declares its voxel size
                first = volume
            require_same_voxel_size(volume, first)
    if first is None:
        raise VolumeError("reconcile: found no subvolumes, at least one is needed. Did segment finish?")
    tiling = Tiling.of(list(places))
    return Subvolumes(tiling, [places[tiling.box(index)] for index in range(tiling.num_boxes)], voxel_size_of(first))


def count_in_cells(a: np.ndarray, b: np.ndarray, offset_zyx: ZYX, cell_zyx: ZYX) -> np.ndarray:
    """Count the voxels of every pair of ids in every cell."""
    cells_along_x = np.broadcast_to((np.arange(a.shape[2]) + offset_zyx[2]) // cell_zyx[2], a.shape)
    starts, lengths = find_runs(a, b, cells_along_x, within_rows=True)
    ids = np.stack([a.ravel()[starts], b.ravel()[starts]], axis=1).astype(np.int64)
    cells = (np.stack(np.unravel_index(starts, a.shape), axis=1) + offset_zyx) // cell_zyx * cell_zyx
    return add_up(np.column_stack([ids, cells, lengths])[(ids != 0).all(axis=1)])


class GlobalIds:
    """The global ids of subvolumes, read as they are needed."""

    def __init__(self, subvolumes: Subvolumes, tables: StepTables) -> None:
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
