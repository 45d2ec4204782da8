"""Tables of all subvolumes on a disk, and the ids of all subvolumes as the nodes of one graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.io import scratch
from ffn.io.block_log import Result
from ffn.io.scratch import ScratchRows

COLUMNS: dict[str, tuple[tuple[int, ...], type]] = {
    "ids": ((), np.uint64),
    "voxels": ((), np.int64),
    "in_core": ((), np.bool_),
    "claims": ((7,), np.int64),
    "origins": ((6,), np.int64),
    "overlaps": ((6,), np.int64),
}


class SubvolumeTables:
    """What `Subvolumes.look_at` returned for each subvolume, one below the other, read a few subvolumes at a time.

    The tables are on a disk, in `folder`, and gone at the end.
    """

    def __init__(self, of_each: Iterable[Result], folder: Path | None = None) -> None:
        self._tables = {name: ScratchRows(*kind, folder) for name, kind in COLUMNS.items()}
        ends: dict[str, list[int]] = {name: [0] for name in COLUMNS}
        for found in of_each:
            for name, table in self._tables.items():
                table.append(found[name])
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


@dataclass(frozen=True)
class LocalIds:
    """Ids of all subvolumes as nodes, numbered consecutively in the order of subvolumes and of their tables."""

    first: np.ndarray  # int64, first node of each subvolume; the last entry is the number of nodes
    voxels: np.ndarray  # int64, of each node in its whole subvolume
    in_core: np.ndarray  # bool, whether a node has voxels in the core of its subvolume
    sorted_ids: np.ndarray  # uint64, ids in ascending order within each subvolume
    order: np.ndarray  # int64, their nodes

    @classmethod
    def of(cls, tables: SubvolumeTables) -> LocalIds:
        """Return the nodes of all subvolumes."""
        num_nodes = int(tables.first("ids")[-1])
        sorted_ids, order, start = np.empty(num_nodes, np.uint64), np.empty(num_nodes, np.int64), 0
        for subvolumes, ids in tables.batches("ids"):
            ascending, stop = np.lexsort((ids, subvolumes)), start + len(ids)
            sorted_ids[start:stop], order[start:stop] = ids[ascending], ascending + start
            start = stop
        return cls(tables.first("ids"), tables.whole("voxels"), tables.whole("in_core"), sorted_ids, order)

    @property
    def num_nodes(self) -> int:
        """Number of ids in all subvolumes."""
        return len(self.order)

    def find(self, subvolumes: np.ndarray | int, ids: np.ndarray) -> np.ndarray:
        """Return the nodes (int64) of `ids` in `subvolumes`, which must have them; both are arrays of shape (N,)."""
        ids = ids.astype(np.uint64)
        low = np.broadcast_to(self.first[subvolumes], ids.shape)
        high = np.broadcast_to(self.first[np.add(subvolumes, 1)], ids.shape)
        for _ in range(int((high - low).max(initial=0)).bit_length()):  # halves what is between low and high
            middle = (low + high) // 2
            is_below = self.sorted_ids[middle] < ids
            low, high = np.where(is_below, middle + 1, low), np.where(is_below, high, middle)
        return self.order[low]

    def subvolumes_of(self, nodes: np.ndarray) -> np.ndarray:
        """Return the number (int64) of the subvolume that each node is in."""
        return np.searchsorted(self.first, nodes, "right") - 1
