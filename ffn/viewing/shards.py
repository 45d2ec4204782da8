"""Values by 64-bit id in few files, Neuroglancer's ``uint64_sharded_v1``, and pieces of segments joined there.

A segment is made in pieces, block by block. The pieces of a block are one file; a table of all pieces is sorted by
shard, so that the job that joins a shard reads its own part of it.

Source of the format: Neuroglancer, ``src/datasource/precomputed/sharded.md``.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ffn.io.atomic import atomic_path, this_job
from ffn.io.scratch import ScratchRows, Table, parts_of, sort_rows

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


def num_shards(sharding: Sharding) -> int:
    """Return how many shards there are; those without an id have no file."""
    return 2 ** sharding["shard_bits"]


def shards_of(sharding: Sharding, ids: np.ndarray) -> np.ndarray:
    """Return the number of the shard of each id.

    >>> shards_of({"minishard_bits": 1, "shard_bits": 2}, np.array([0, 1, 2, 9], np.uint64)).tolist()
    [0, 0, 1, 0]
    """
    return (ids >> np.uint64(sharding["minishard_bits"])) % np.uint64(num_shards(sharding))


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


def write_pieces(path: Path, pieces: Iterable[tuple[int, bytes]]) -> np.ndarray:
    """Write the pieces of a block; return id, start and stop in the file of each, uint64 of shape (N, 3)."""
    rows, position = [], 0
    with atomic_path(path, this_job()) as temporary, temporary.open("wb") as file:
        for segment_id, content in pieces:
            rows.append((segment_id, position, position + len(content)))
            position += file.write(content)
    return np.array(rows, np.uint64).reshape(-1, 3)


def sort_pieces(
    blocks: Iterable[np.ndarray], ids: np.ndarray, encoded: float, folder: Path
) -> tuple[Sharding, dict[str, Table]]:
    """Sort the pieces of all blocks by shard; return a layout of shards, and tables for `pieces_of_shard`.

    `blocks` are the rows of `write_pieces`, `ids` all segments to store: each gets an empty piece in block 0, so that
    it is there without any other. `encoded` are the bytes in a shard, on average, for a byte of a piece. Memory is that
    of a block and of a row for each segment.
    """
    rows, total = ScratchRows((4,), np.uint64, folder), 0
    rows.append(np.column_stack([ids, np.zeros((len(ids), 3), np.uint64)]))
    for number, found in enumerate(blocks):
        rows.append(np.insert(found, 1, number, axis=1))
        total += int((found[:, 2] - found[:, 1]).sum())
    sharding = plan_shards(len(ids), encoded * total)
    numbered, counts = ScratchRows((5,), np.uint64, folder), np.zeros(num_shards(sharding), np.int64)
    for some in parts_of(rows):
        shards = shards_of(sharding, some[:, 0])
        numbered.append(np.column_stack([shards, some]))
        counts += np.bincount(shards.astype(np.int64), minlength=len(counts))
    in_order = sort_rows(numbered, lambda part: part[order_in_shards(sharding, part[:, 1]), 1:], folder)
    return sharding, {"rows": in_order, "ends": np.cumsum(counts)}


def pieces_of_shard(rows: np.ndarray, file_of: Callable[[int], Path]) -> SegmentPieces:
    """Yield segments with their pieces, of some rows of `sort_pieces`: id, number of the block, start, stop.

    Memory is that of the pieces of a segment. `file_of` returns the file of a block.
    """
    for segment_id, own in itertools.groupby(rows.tolist(), lambda row: row[0]):
        yield segment_id, [_read(file_of(block), start, stop) for _, block, start, stop in own if stop]


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
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
