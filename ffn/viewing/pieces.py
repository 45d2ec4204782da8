"""Pieces of segments: made block by block, then joined by the shards that the segments are stored in.

A block's pieces are one file. Their index stays on disk as well, sorted by shard, so that who joins a shard reads its
own part of it.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box, cut
from ffn.io.atomic import atomic_path
from ffn.io.block_log import Result
from ffn.viewing.blockwise import BlockList
from ffn.viewing.shards import order_in_shard, plan_shards, shard_path, shards_of

SegmentPieces = Iterable[tuple[int, list[bytes]]]
Join = Callable[[Path, SegmentPieces], Result]

# A piece is `length` bytes from `place` on in the file of a block; `size` estimates its bytes in a shard.
ROW = np.dtype([("id", "<u8"), ("block", "<i8"), ("place", "<i8"), ("length", "<i8"), ("size", "<f8")])
NOWHERE = -1  # block of a segment without a piece
ROWS = "rows.npy"
PARTS_AT_ONCE = 1000  # blocks after which the index is written out
ONLY = Box.from_shape((1, 1, 1))


class Piece(NamedTuple):
    """The part of a segment in a block.

    Parameters
    ----------
    id : int
        Segment.
    content : bytes
        What is to be joined.
    size : float
        Estimate of the bytes that it needs when it is joined.
    """

    id: int
    content: bytes
    size: float


@dataclass(frozen=True)
class Pieces:
    """Pieces of segments of one kind, such as surfaces.

    Parameters
    ----------
    folder : Path
        For their files and their index.
    blocks : sequence of Box
        That they are made from.
    """

    folder: Path
    blocks: Sequence[Box]

    def made_by(self, name: str, make: Callable[[Box], Iterable[Piece]]) -> BlockList:
        """Return the blocks, of which each yields pieces; no two of a segment."""
        return BlockList(name, self.blocks, partial(_write, self, make))

    def sorted_by_shard(self, name: str, results: Sequence[Result], ids: np.ndarray) -> BlockList:
        """Return what makes the index, once all pieces are made, as one block.

        Memory is that of a block and of a row for each segment, whatever the number of pieces.

        Parameters
        ----------
        name : str
            Of the list.
        results : sequence of dict
            Results of the blocks, in their order; read three times.
        ids : uint64 ndarray of shape (N,)
            All segments to store, also those without a piece.
        """
        return BlockList(name, [ONLY], lambda _: self._sort(results, ids))

    def joined_by(self, name: str, folder: Path, index: Result, join: Join) -> BlockList:
        """Return the shards of a folder as blocks in a row.

        Parameters
        ----------
        name : str
            Of the list.
        folder : Path
            Where the shards go.
        index : dict
            The result of `sorted_by_shard`.
        join : callable
            Writes a file, of the pieces of each segment in it, in the order of their blocks.
        """
        shards = cut(Box.from_shape((len(index["ends"]), 1, 1)), (1, 1, 1))
        files = partial(_files, folder, index["sharding"])
        return BlockList(name, shards, partial(_join, self, index, files, join))

    def of_shard(self, start: int, stop: int, sharding: dict[str, Any]) -> SegmentPieces:
        """Yield segments with their pieces, from the rows of a shard in the index, in the order in which it has them.

        Memory is that of the pieces of a segment, and of these rows.

        Raises
        ------
        ExportError
            If there is no index.
        """
        if not (self.folder / ROWS).exists():
            raise ExportError(
                f"{self.folder}: has no pieces, which are removed when an export is finished. Remove the export to "
                "make it again"
            )
        rows = np.array(np.load(self.folder / ROWS, mmap_mode="r")[start:stop])
        rows = rows[order_in_shard(sharding, rows["id"])]
        for segment_id, own in itertools.groupby(rows, lambda row: int(row["id"])):
            yield segment_id, [self._read(row) for row in own if row["block"] != NOWHERE]

    def _sort(self, results: Sequence[Result], ids: np.ndarray) -> Result:
        sharding = plan_shards(len(ids), int(sum(each["rows"]["size"].sum() for each in results)))
        counts = np.zeros(2 ** sharding["shard_bits"], np.int64)
        for rows in _all_rows(results, ids):
            np.add.at(counts, _shards(sharding, rows), 1)
        ends = np.cumsum(counts)
        with atomic_path(self.folder / ROWS) as temporary:
            _sort_to(temporary, _all_rows(results, ids), sharding, ends)
        return {"sharding": sharding, "ends": ends}

    def _read(self, row: np.void) -> bytes:
        with self._file(self.blocks[int(row["block"])]).open("rb") as file:
            file.seek(int(row["place"]))
            return file.read(int(row["length"]))

    def _file(self, block: Box) -> Path:
        return self.folder / block.stem


def _write(pieces: Pieces, make: Callable[[Box], Iterable[Piece]], block: Box) -> Result:
    """Write the pieces of a block."""
    rows, place = [], 0
    with atomic_path(pieces._file(block)) as temporary, temporary.open("wb") as file:
        for piece in make(block):
            rows.append((piece.id, 0, place, len(piece.content), piece.size))
            place += file.write(piece.content)
    return {"rows": np.array(rows, ROW)}


def _all_rows(results: Iterable[Result], ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a row without a piece for each segment, and then the rows of each block."""
    empty = np.zeros(len(ids), ROW)
    empty["id"], empty["block"] = ids, NOWHERE
    yield empty
    for block, each in enumerate(results):
        rows = each["rows"]
        rows["block"] = block
        yield rows


def _shards(sharding: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    return shards_of(sharding, rows["id"]).astype(np.int64)


def _sort_to(path: Path, parts: Iterable[np.ndarray], sharding: dict[str, Any], ends: np.ndarray) -> None:
    """Write rows sorted by shard; those of a shard stay in their order."""
    if not ends[-1]:
        with path.open("wb") as file:
            np.save(file, np.empty(0, ROW))
        return
    table = np.lib.format.open_memmap(path, "w+", ROW, (int(ends[-1]),))
    _reserve(path)
    free = np.concatenate([[0], ends[:-1]])
    for number, rows in enumerate(parts):
        shards = _shards(sharding, rows)
        order = np.argsort(shards, kind="stable")
        own, first, counts = np.unique(shards[order], return_index=True, return_counts=True)
        table[np.arange(len(rows)) + np.repeat(free[own] - first, counts)] = rows[order]
        free[own] += counts
        if number % PARTS_AT_ONCE == 0:
            table.flush()
            table._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
    table.flush()


def _reserve(path: Path) -> None:
    """Give a sparse file its blocks; on a full disk, the first write to a map of it would kill the process."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _files(folder: Path, sharding: dict[str, Any], shard: Box) -> list[Path]:
    return [shard_path(folder, sharding, shard.start[0])]


def _join(pieces: Pieces, index: Result, files: Callable[[Box], list[Path]], join: Join, shard: Box) -> Result:
    """Join the pieces of one shard; without a segment, there is no file."""
    ends, number, (path,) = index["ends"], shard.start[0], files(shard)
    start, stop = int(ends[number - 1]) if number else 0, int(ends[number])
    return join(path, pieces.of_shard(start, stop, index["sharding"])) if start < stop else {}
