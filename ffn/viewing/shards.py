"""Values by 64-bit id in few files, Neuroglancer's ``uint64_sharded_v1``, and segments joined there of their pieces.

Source of the format: Neuroglancer, ``src/datasource/precomputed/sharded.md``.
"""

from __future__ import annotations

import gzip
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ffn.geometry import Box, Grid, cut
from ffn.io.atomic import atomic_path, this_job, write_json
from ffn.io.block_log import Result
from ffn.io.coarser import Scale
from ffn.io.scratch import ScratchRows, Table, Tables, sort_rows
from ffn.viewing.precomputed import open_scale

SHARD_BYTES = 2**26  # target size of a file
INDEX_BYTES = 16  # where the index of a minishard starts and ends
MINISHARD_ITEMS = 64  # target length of the index that a reader fetches to find one id

Sharding = dict[str, Any]  # the ``sharding`` member of an ``info``
SegmentPieces = Iterable[tuple[int, list[bytes]]]  # segments with their pieces


def plan_shards(num_items: int, total_bytes: float) -> Sharding:
    """Plan files of about `SHARD_BYTES`."""
    shard_bits = _bits(total_bytes / SHARD_BYTES)
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": 0,
        "minishard_bits": _bits(num_items / 2**shard_bits / MINISHARD_ITEMS),
        "shard_bits": shard_bits,
        "minishard_index_encoding": "gzip",
        "data_encoding": "raw",
    }


def shards_of(sharding: Sharding, ids: np.ndarray) -> np.ndarray:
    """Return the number of the shard of each id.

    >>> shards_of({"minishard_bits": 1, "shard_bits": 2}, np.array([0, 1, 2, 9], np.uint64)).tolist()
    [0, 0, 1, 0]
    """
    return (ids >> np.uint64(sharding["minishard_bits"])) % np.uint64(2 ** sharding["shard_bits"])


def order_in_shards(sharding: Sharding, ids: np.ndarray) -> np.ndarray:
    """Return the order of ids by shard, by minishard, and in it; equal ones stay in theirs.

    >>> ids = np.array([9, 4, 8, 3], np.uint64)
    >>> ids[order_in_shards({"minishard_bits": 1, "shard_bits": 0}, ids)].tolist()
    [4, 8, 3, 9]
    """
    return np.lexsort((ids, ids % np.uint64(2 ** sharding["minishard_bits"]), shards_of(sharding, ids)))


def shard_path(folder: Path, sharding: Sharding, shard: int) -> Path:
    """Return the file of a shard."""
    digits = -(-sharding["shard_bits"] // 4)
    return folder / f"{shard:0{digits}x}.shard"


def write_shard(path: Path, sharding: Sharding, items: Iterable[tuple[int, bytes, bytes]]) -> None:
    """Write (id, prefix, value) one after the other, in the order of `order_in_shards`.

    The index points to the value. Neuroglancer expects the fragments of a mesh directly before it.
    """
    minishards: list[list[tuple[int, int, int]]] = [[] for _ in range(2 ** sharding["minishard_bits"])]
    with atomic_path(path, this_job()) as temporary, temporary.open("wb") as file:
        file.seek(INDEX_BYTES * len(minishards))  # the positions of the minishard indices come last
        position = 0
        for key, prefix, value in items:
            start = position + file.write(prefix)
            position = start + file.write(value)
            minishards[key % len(minishards)].append((key, start, position))
        indices = [_encode_index(rows) for rows in minishards]
        ends = position + np.cumsum([len(index) for index in indices])
        file.writelines(indices)
        file.seek(0)
        table = [(end - len(index), end) for index, end in zip(indices, ends, strict=True)]
        file.write(np.array(table, "<u8").tobytes())


class SegmentFiles(ABC):
    """Meshes or skeletons of the segments of a layer: made in pieces, block by block, and joined shard by shard.

    The pieces of a block are one file; a table of all pieces is sorted by shard, so that the job that joins a shard
    reads its own part of it.
    """

    name: ClassVar[str]  # of the folder in that of the layer
    encoded: ClassVar[float]  # bytes in a shard, on average, for a byte of a piece
    info: ClassVar[dict[str, Any]]  # without the layout of the shards

    def __init__(self, layer: Path, mip: int, scale: Scale, piece_folder: Path, has_swc: bool = False) -> None:
        self.layer, self.mip, self.scale, self.piece_folder = layer, mip, scale, piece_folder
        self.has_swc = has_swc  # beside the skeletons
        self.folder, self.key = layer / self.name, f"{layer.name}-{self.name}"
        self.blocks = self.cut()

    @abstractmethod
    def cut(self) -> Grid:
        """Return the blocks of the mip."""

    @abstractmethod
    def pieces_in(self, wanted: np.ndarray, block: Box) -> Iterator[tuple[int, bytes]]:
        """Yield the pieces of the `wanted` segments (ascending) in a block."""

    @abstractmethod
    def write_joined(self, sharding: Sharding, path: Path, segments: SegmentPieces) -> Result:
        """Write a shard. A segment without a piece gets an empty entry."""

    @property
    def sharding(self) -> Sharding:
        """Layout of the shards, once the pieces are sorted."""
        return json.loads((self.folder / "info").read_text())["sharding"]

    @property
    def shards(self) -> Grid:
        """Numbers of the shards; those without an id have no file."""
        return cut(Box.from_shape((2 ** self.sharding["shard_bits"], 1, 1)), (1, 1, 1))

    def read(self, box: Box) -> np.ndarray:
        """Return the voxels of the mip, 0 outside of the volume."""
        inside = box.intersect(self.scale.box)
        labels = np.zeros(box.shape, np.uint64)
        labels[inside.slices(box.start)] = open_scale(self.layer, self.mip)[inside.slices()].read().result()
        return labels

    def write_pieces(self, wanted: np.ndarray, block: Box) -> Result:
        """Write the pieces in a block; return id, start and stop in the file of each, uint64 of shape (N, 3)."""
        rows, position = [], 0
        with atomic_path(self.piece_folder / block.stem, this_job()) as temporary, temporary.open("wb") as file:
            for segment_id, content in self.pieces_in(wanted, block):
                rows.append((segment_id, position, position + len(content)))
                position += file.write(content)
        return {"rows": np.array(rows, np.uint64).reshape(-1, 3)}

    def sort_pieces(self, blocks: Sequence[Result], ids: np.ndarray) -> dict[str, Table]:
        """Plan the shards, and return the pieces of all blocks by shard.

        `ids` are all segments to store: each gets an empty piece in block 0, so that it is there without any other.
        Memory is that of a block and of a row for each segment.
        """
        total = sum(int((each["rows"][:, 2] - each["rows"][:, 1]).sum()) for each in blocks)
        sharding = plan_shards(len(ids), self.encoded * total)
        write_json(self.folder / "info", {**self.info, "sharding": sharding})
        rows, counts = ScratchRows((5,), np.uint64, self.piece_folder), np.zeros(len(self.shards), np.int64)
        empty = np.column_stack([ids, np.zeros((len(ids), 3), np.uint64)])
        made = (np.insert(each["rows"], 1, number, axis=1) for number, each in enumerate(blocks))
        for some in itertools.chain([empty], made):
            shards = shards_of(sharding, some[:, 0])
            rows.append(np.column_stack([shards, some]))
            counts += np.bincount(shards.astype(np.int64), minlength=len(counts))
        in_order = sort_rows(rows, lambda part: part[order_in_shards(sharding, part[:, 1]), 1:], self.piece_folder)
        return {f"{self.key}-rows": in_order, f"{self.key}-ends": np.cumsum(counts)}

    def join_shard(self, pieces: Tables, shard: Box) -> Result:
        """Write one of the `shards`, of the tables of `sort_pieces`; one without segments has no file.

        Memory is that of the pieces of a segment.
        """
        number = shard.start[0]
        first, last = [0, *pieces.read(f"{self.key}-ends").tolist()][number : number + 2]
        if first == last:
            return {}
        rows, sharding = pieces.read(f"{self.key}-rows", first, last).tolist(), self.sharding
        segments = (
            (segment_id, [self._piece(block, start, stop) for _, block, start, stop in own if stop])
            for segment_id, own in itertools.groupby(rows, lambda row: row[0])
        )
        return self.write_joined(sharding, shard_path(self.folder, sharding, number), segments)

    def _piece(self, block: int, start: int, stop: int) -> bytes:
        with (self.piece_folder / self.blocks[block].stem).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


def _bits(ratio: float) -> int:
    """Bits that distinguish at least `ratio` groups."""
    return max(0, int(np.ceil(ratio)) - 1).bit_length()


def _encode_index(rows: list[tuple[int, int, int]]) -> bytes:
    """Encode (id, start, end) of the values of a minishard as differences of ids, gaps before values, and sizes."""
    if not rows:
        return b""
    keys, starts, ends = np.array(rows, np.uint64).T
    zero = np.zeros(1, np.uint64)
    gaps = starts - np.concatenate([zero, ends[:-1]])
    columns = np.stack([np.diff(keys, prepend=zero), gaps, ends - starts])
    return gzip.compress(columns.astype("<u8").tobytes(), mtime=0)
