"""Tables that a step of a stage makes once, in a folder, for the jobs of later steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.io.atomic import atomic_path, write_json
from ffn.io.scratch import Table, parts_of
from ffn.io.store_names import TABLES


@dataclass(frozen=True)
class Tables:
    """Tables of a finished step."""

    arrays: Mapping[str, np.ndarray]  # on disk until they are read
    digest: str = ""  # checksum of all of them

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return rows `start` … `stop` of a table, by default all."""
        return np.array(self.arrays[name][start:stop])


def write_tables(path: Path, tables: Mapping[str, Table], key: Mapping[str, Any]) -> None:
    """Write tables part by part; those of a killed job do not count."""
    (path / TABLES).unlink(missing_ok=True)
    digest = hashlib.sha256()
    for name, table in sorted(tables.items()):
        digest.update(f"{name} {table.shape} {table.dtype}".encode())
        with atomic_path(path / f"{name}.npy") as temporary, temporary.open("wb") as file:
            header = {"shape": table.shape, "fortran_order": False, "descr": table.dtype.str}
            np.lib.format.write_array_header_1_0(file, header)
            for rows in map(np.ascontiguousarray, parts_of(table)):
                file.write(rows.data)
                digest.update(rows.data)
    write_json(path / TABLES, {"key": _digest(key), "digest": digest.hexdigest(), "tables": sorted(tables)})


def read_tables(path: Path, key: Mapping[str, Any]) -> Tables | None:
    """Return the tables in a folder; None if there are none, or they depend on something else than `key`."""
    try:
        written = json.loads((path / TABLES).read_bytes())
        if written["key"] != _digest(key):
            return None
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in written["tables"]}
    except (OSError, ValueError):
        return None
    return Tables(arrays, written["digest"])


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
