"""Write values by 64-bit id into a few files: Neuroglancer's ``uint64_sharded_v1``, with the prefix that meshes need.

Source of the format: Neuroglancer, ``src/datasource/precomputed/sharded.md``.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.io.atomic import atomic_path

SHARD_BYTES = 2**26  # target size of a file
INDEX_BYTES = 16  # where the index of a minishard starts and ends
MINISHARD_ITEMS = 64  # target length of the index that a reader fetches to find one id


class Item(NamedTuple):
    """The bytes stored for one id.

    Parameters
    ----------
    value : bytes
        The value that the index points to.
    prefix : bytes
        Stored directly before the value; Neuroglancer expects the fragments of a mesh there.
    """

    value: bytes
    prefix: bytes = b""


def write_shards(folder: Path, items: dict[int, Item]) -> dict[str, Any]:
    """Write all `items`.

    Parameters
    ----------
    folder : Path
        Existing folder for the ``.shard`` files.
    items : dict of int to Item
        By id.

    Returns
    -------
    dict
        The ``sharding`` member of the folder's ``info``.
    """
    sharding = plan_shards(len(items), sum(len(item.value) + len(item.prefix) for item in items.values()))
    ids = np.array(sorted(items), np.uint64)
    shards = shards_of(sharding, ids)
    for shard in np.unique(shards).tolist():
        own = ids[shards == shard]
        ordered = own[order_in_shard(sharding, own)].tolist()
        write_shard(shard_path(folder, sharding, shard), sharding, ((key, items[key]) for key in ordered))
    return sharding


def plan_shards(num_items: int, total_bytes: int) -> dict[str, Any]:
    """Return the ``sharding`` member of an ``info``, for files of about `SHARD_BYTES`."""
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


def shards_of(sharding: dict[str, Any], ids: np.ndarray) -> np.ndarray:
    """Return the number of the shard of each id.

    Examples
    --------
    >>> shards_of({"minishard_bits": 1, "shard_bits": 2}, np.array([0, 1, 2, 9], np.uint64)).tolist()
    [0, 0, 1, 0]
    """
    return (ids >> np.uint64(sharding["minishard_bits"])) % np.uint64(2 ** sharding["shard_bits"])


def order_in_shard(sharding: dict[str, Any], ids: np.ndarray) -> np.ndarray:
    """Return the order in which a shard has ids; equal ones stay in theirs.

    Examples
    --------
    >>> ids = np.array([9, 4, 8, 3], np.uint64)
    >>> ids[order_in_shard({"minishard_bits": 1}, ids)].tolist()
    [4, 8, 3, 9]
    """
    return np.lexsort((ids, ids % np.uint64(2 ** sharding["minishard_bits"])))


def shard_path(folder: Path, sharding: dict[str, Any], shard: int) -> Path:
    """Return the file of a shard, which appears complete."""
    digits = -(-sharding["shard_bits"] // 4)
    return folder / f"{shard:0{digits}x}.shard"


def write_shard(path: Path, sharding: dict[str, Any], items: Iterable[tuple[int, Item]]) -> None:
    """Write the items of one shard, see `shards_of` and `shard_path`, one after the other.

    Parameters
    ----------
    path : Path
        The file.
    sharding : dict
        From `plan_shards`.
    items : iterable of (int, Item)
        With their ids, in the order of `order_in_shard`. Only one of them is in memory.
    """
    minishards: list[list[tuple[int, int, int]]] = [[] for _ in range(2 ** sharding["minishard_bits"])]
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.seek(INDEX_BYTES * len(minishards))  # the positions of the minishard indices come last
        position = 0
        for key, item in items:
            start = position + file.write(item.prefix)
            position = start + file.write(item.value)
            minishards[key % len(minishards)].append((key, start, position))
        indices = [_encode_index(rows) for rows in minishards]
        ends = position + np.cumsum([len(index) for index in indices])
        file.writelines(indices)
        file.seek(0)
        table = [(end - len(index), end) for index, end in zip(indices, ends, strict=True)]
        file.write(np.array(table, "<u8").tobytes())


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
