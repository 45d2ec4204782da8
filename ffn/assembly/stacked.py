"""What was learnt of all subvolumes, as tables that are on a disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from ffn.io import scratch
from ffn.io.blocks import Learnt
from ffn.io.scratch import ScratchRows

TABLES: dict[str, tuple[tuple[int, ...], type]] = {
    "ids": ((), np.uint64),
    "voxels": ((), np.int64),
    "in_core": ((), np.bool_),
    "claims": ((7,), np.int64),
    "origins": ((6,), np.int64),
    "overlaps": ((6,), np.int64),
}


class Stacked:
    """Tables of all subvolumes, one below the other, read a few subvolumes at a time."""

    def __init__(self, learnt: Iterable[Learnt], folder: Path | None = None) -> None:
        self._tables = {name: ScratchRows(*kind, folder) for name, kind in TABLES.items()}
        ends: dict[str, list[int]] = {name: [0] for name in TABLES}
        for each in learnt:
            for name, table in self._tables.items():
                table.append(each[name])
                ends[name].append(len(table))
        self._first = {name: np.array(numbers) for name, numbers in ends.items()}

    def first(self, name: str) -> np.ndarray:
        """Return the first row of each subvolume in a table, and the number of rows: int64 of shape (S + 1,)."""
        return self._first[name]

    def whole(self, name: str) -> np.ndarray:
        """Return a table with the rows of all subvolumes."""
        return self._tables[name][:]

    def batches(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield a table a few whole subvolumes at a time: the number of the subvolume (int64) of each row, the rows."""
        first, start = self._first[name], 0
        while start < len(first) - 1:
            full = np.searchsorted(first, first[start] + scratch.ROWS_AT_ONCE, "right") - 1
            stop = max(start + 1, int(full))
            numbers = np.repeat(np.arange(start, stop), np.diff(first[start : stop + 1]))
            yield numbers, self._tables[name][int(first[start]) : int(first[stop])]
            start = stop
