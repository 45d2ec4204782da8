"""Tables of rows: in unlinked temporary files, or made once by a step of a stage for the jobs of later steps."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX
from ffn.io.atomic import atomic_path, named, write_json
from ffn.io.store_names import TABLES

ROWS_AT_ONCE = 2**18  # rows of a table in memory at a time; our choice: what a million rows need is 0.5 GiB
ROWS_TO_SORT = 2**20  # rows that are sorted in memory; our choice
MAX_PARTS = 256  # files that are open at a time when more rows are sorted
MAX_WAITING = 2**20  # bytes of a table that wait before they are written


def scratch_array(shape_zyx: ZYX, dtype: np.dtype, folder: Path | None) -> np.memmap:
    """Return an array of zeros that is on a disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        num_bytes = math.prod(shape_zyx) * dtype.itemsize
        os.posix_fallocate(file.fileno(), 0, num_bytes)  # writing to a map of a full disk would end the process
        return np.memmap(file, dtype, "r+", shape=shape_zyx)


class ScratchRows:
    """Rows of a table that are on a disk: appended first, then read as slices of an array.

    Examples
    --------
    >>> rows = ScratchRows((2,), np.int64, None)
    >>> rows.append(np.array([[4, 1], [5, 2]]))
    >>> rows.shape, rows[1:].tolist()
    ((2, 2), [[5, 2]])
    """

    def __init__(self, columns: tuple[int, ...], dtype: np.dtype | type, folder: Path | None) -> None:
        self.dtype, self.shape = np.dtype(dtype), (0, *columns)
        self._where = folder or tempfile.gettempdir()
        self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=MAX_WAITING)
        weakref.finalize(self, _close, self._file)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def append(self, rows: np.ndarray) -> None:
        """Add rows at the end."""
        with named(self._where):
            self._file.seek(0, os.SEEK_END)
            self._file.write(np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)
        self.shape = (len(self) + len(rows), *self.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return a range of rows."""
        start, stop, _ = rows.indices(len(self))
        found = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        with named(self._where):
            self._file.seek(start * math.prod(self.shape[1:]) * self.dtype.itemsize)
            if self._file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
                raise VolumeError(f"{self._where}: rows that waited there are lost. Rerun the stage")
        return found


def _close(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what waits does not fit on a full disk
        file.close()


Table = np.ndarray | ScratchRows  # in memory, or on a disk


def folder_beside(path: str) -> Path | None:
    """Return a folder on the disk that a store or file is written to; None for a URL."""
    return next((place for place in (Path(path), Path(path).parent) if place.is_dir()), None)


def parts_of(table: Table) -> Iterator[np.ndarray]:
    """Yield all rows of a table, `ROWS_AT_ONCE` at a time."""
    return (table[start : start + ROWS_AT_ONCE] for start in range(0, len(table), ROWS_AT_ONCE))


def sort_rows(rows: ScratchRows, in_order: Callable[[np.ndarray], np.ndarray], folder: Path | None) -> ScratchRows:
    """Sort a table by its first column without holding it in memory."""
    bounds = _bounds(rows)
    parts = [ScratchRows(rows.shape[1:], rows.dtype, folder) for _ in range(len(bounds) + 1)]
    for some in parts_of(rows):
        number = np.searchsorted(bounds, some[:, 0], "right")
        order = np.argsort(number, kind="stable")
        starts = np.searchsorted(number[order], np.arange(1, len(parts)))
        for part, of_part in zip(parts, np.split(some[order], starts), strict=True):
            part.append(of_part.copy())  # a view would keep all of `some`
    done = (in_order(part[:]) for part in parts)
    first = next(done)
    found = ScratchRows(first.shape[1:], first.dtype, folder)
    for some in itertools.chain([first], done):
        found.append(some)
    return found


def _bounds(rows: ScratchRows) -> np.ndarray:
    """Return values of the first column that cut a table into parts of about `ROWS_TO_SORT` rows."""
    num_parts = min(-(-len(rows) // ROWS_TO_SORT), MAX_PARTS)
    if num_parts < 2:
        return np.empty(0, rows.dtype)
    sample = np.sort(np.concatenate([part[:: max(1, len(rows) // ROWS_AT_ONCE), 0] for part in parts_of(rows)]))
    return np.unique(sample[np.arange(1, num_parts) * len(sample) // num_parts])


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
