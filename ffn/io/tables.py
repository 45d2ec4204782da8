"""Tables that a step of a stage makes once, in a folder, for the jobs of later steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.io.scratch import Table
from ffn.io.store_names import TABLES


@dataclass(frozen=True)
class Tables:
    """Tables of a finished step."""

    arrays: Mapping[str, Any]  # on disk until they are read
    digest: str = ""  # checksum of all of them

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows `start` … `stop` of a table, by default all."""
        return np.asarray(self.arrays[name][start:stop])


def write_tables(path: Path, tables: Mapping[str, Table], key: Mapping[str, Any]) -> None:
    """Write tables chunk by chunk; those of a killed job do not count."""
    from ffn.io.ome_zarr import ROWS_PER_CHUNK, table_metadata
    from ffn.io.store_folder import StoreFolder

    folder = StoreFolder(str(path))
    folder.delete(TABLES)
    digest = hashlib.sha256()
    for name, table in sorted(tables.items()):
        folder.remove(name)
        folder.write_metadata(name, table_metadata(table.shape, table.dtype))
        digest.update(f"{name} {table.shape} {table.dtype}".encode())
        array = folder.open_array(name)
        for start in range(0, len(table), ROWS_PER_CHUNK):
            rows = table[start : start + ROWS_PER_CHUNK]
            array[start : start + len(rows)].write(rows).result()
            digest.update(rows.tobytes())
    written = {"key": _digest(key), "digest": digest.hexdigest(), "tables": sorted(tables)}
    folder.write(TABLES, (json.dumps(written, sort_keys=True) + "\n").encode())


def read_tables(path: Path, key: Mapping[str, Any]) -> Tables | None:
    """Return the tables in a folder; None if there are none, or they depend on something else than `key`."""
    from ffn.io.store_folder import StoreFolder

    try:
        written = json.loads((path / TABLES).read_bytes())
    except (OSError, ValueError):
        return None
    if written.get("key") != _digest(key):
        return None
    folder = StoreFolder(str(path))
    return Tables({name: folder.open_array(name) for name in written["tables"]}, written["digest"])


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
