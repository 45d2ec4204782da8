"""Write values by 64-bit id into a few files: Neuroglancer's ``uint64_sharded_v1``, with the prefix that meshes need.

Source of the format: Neuroglancer, ``src/datasource/precomputed/sharded.md``.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.io.atomic import atomic_path

SHARD_BYTES = 2**26  # target size of a file
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
        own = {key: items[key] for key in ids[shards == shard].tolist()}
        write_shard(shard_path(folder, sharding, shard), sharding, own)
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


def shard_path(folder: Path, sharding: dict[str, Any], shard: int) -> Path:
    """Return the file of a shard, which appears complete."""
    digits = -(-sharding["shard_bits"] // 4)
    return folder / f"{shard:0{digits}x}.shard"


def write_shard(path: Path, sharding: dict[str, Any], items: dict[int, Item]) -> None:
    """Write the items of one shard, see `shards_of` and `shard_path`."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(_encode_shard(dict(sorted(items.items())), sharding["minishard_bits"]))


def _bits(ratio: float) -> int:
    """Bits that distinguish at least `ratio` groups."""
    return max(0, int(np.ceil(ratio)) - 1).bit_length()


def _encode_shard(items: dict[int, Item], minishard_bits: int) -> bytes:
    """Encode one file: the positions of the minishard indices, the values, and the indices."""
    minishards: list[list[int]] = [[] for _ in range(2**minishard_bits)]
    for key in items:
        minishards[key % 2**minishard_bits].append(key)
    values, indices, position = [], [], 0
    for keys in minishards:
        rows = []
        for key in keys:
            start = position + len(items[key].prefix)
            position = start + len(items[key].value)
            rows.append((key, start, position))
            values += [items[key].prefix, items[key].value]
        indices.append(_encode_index(rows))
    ends = position + np.cumsum([len(index) for index in indices])
    table = [(end - len(index), end) for index, end in zip(indices, ends, strict=True)]
    return np.array(table, "<u8").tobytes() + b"".join(values) + b"".join(indices)


def _encode_index(rows: list[tuple[int, int, int]]) -> bytes:
    """Encode (id, start, end) of the values of a minishard as differences of ids, gaps before values, and sizes."""
    if not rows:
        return b""
    keys, starts, ends = np.array(rows, np.uint64).T
    zero = np.zeros(1, np.uint64)
    gaps = starts - np.concatenate([zero, ends[:-1]])
    columns = np.stack([np.diff(keys, prepend=zero), gaps, ends - starts])
    return gzip.compress(columns.astype("<u8").tobytes(), mtime=0)
