"""The record at each position of each lane: a pure function of random seed, lane and position.

A lane is one slot of the global batch. Every epoch permutes the shards, concatenates them, and cuts the sequence into
one equal range per lane. Each lane shuffles its range. Lanes do not wait for each other at the end of an epoch, so
shards of unequal length cannot stall any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np

from ffn.errors import RecordError
from ffn.geometry import ZYX, zyx

# their order decides the streams
Purpose = Literal["weights", "shard order", "lane order", "example", "validation", "validation example"]


def generator(rng_seed: int, purpose: Purpose, *position: int) -> np.random.Generator:
    """Return the generator for one purpose and position. It depends on nothing but the arguments.

    The key is a spawn key of `numpy.random.SeedSequence`. A plain list of integers would not do: NumPy pads it with
    zeros, so ``[1, 2]`` and ``[1, 2, 0]`` would give the same stream.
    """
    key = (get_args(Purpose).index(purpose), *position)
    return np.random.default_rng(np.random.SeedSequence(rng_seed, spawn_key=key))


COLUMNS = 4  # of a table of records

ShardRecords = tuple[np.ndarray, np.ndarray]


class Record(NamedTuple):
    """The location of a training example, full-volume voxels."""

    center_zyx: ZYX
    volume: str


class RecordShards:
    """The shards of one set of records."""

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], read: Callable[[Path], ShardRecords]) -> None:
        self.paths = list(paths)
        self.counts = np.asarray(counts, np.int64)
        self._read = read
        self._table: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def total(self) -> int:
        """Records in all shards."""
        return int(self.counts.sum())

    def require_lanes(self, num_lanes: int) -> None:
        """Check that each lane gets at least one record per epoch."""
        if self.total < num_lanes:
            raise RecordError(
                f"{self.paths[0].parent}: found {self.total} records, expected at least num_workers × "
                f"virtual_workers × batch_size = {num_lanes}. Make more records or use fewer workers"
            )

    def read(self, index: int) -> ShardRecords:
        """Return the centres and volume names of one shard, from the table if there is one."""
        if self._table is None:
            return self._read(self.paths[index])
        table, names = self._table
        rows = table[self.rows(index)]
        return rows[:, :3].astype(np.int64), names[rows[:, 3]]

    def rows(self, index: int) -> slice:
        """Return where the records of a shard are in a table of all."""
        stop = int(self.counts[: index + 1].sum())
        return slice(stop - int(self.counts[index]), stop)

    def keep(self, table: np.ndarray, names: Sequence[str]) -> None:
        """Take records from a table from now on: decoding a shard takes a hundred times as long, in every epoch.

        A row of the int32 (total, `COLUMNS`) table is a centre, zyx, and the index of a volume's name.
        """
        self._table = table, np.array(names)


class LaneStream:
    """The endless sequence of records of one lane."""

    def __init__(self, shards: RecordShards, lane: int, num_lanes: int, rng_seed: int) -> None:
        self.lane = lane
        self._shards = shards
        self._rng_seed = rng_seed
        self._start = lane * shards.total // num_lanes
        self.num_records = (lane + 1) * shards.total // num_lanes - self._start
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None

    def record(self, position: int) -> Record:
        """Return the record at `position`, which counts over all epochs from the start of training."""
        epoch, index = divmod(position, self.num_records)
        held = self._epoch
        if held is None or held[0] != epoch:
            self._epoch = held = (epoch, *self._load_epoch(epoch))
        _, centers_zyx, names = held  # not the attribute, which another thread may have replaced
        return Record(zyx(centers_zyx[index]), str(names[index]))

    def _load_epoch(self, epoch: int) -> ShardRecords:
        """Centres and volume names of this lane's range, in the order of this epoch."""
        shard_order = generator(self._rng_seed, "shard order", epoch).permutation(len(self._shards.paths))
        parts = []
        for index, first, last in self._overlaps(shard_order):
            centers_zyx, names = self._shards.read(index)
            parts.append((centers_zyx[first:last], names[first:last]))
        order = generator(self._rng_seed, "lane order", epoch, self.lane).permutation(self.num_records)
        centers_zyx, names = (np.concatenate(column) for column in zip(*parts, strict=True))
        return centers_zyx[order], names[order]

    def _overlaps(self, shard_order: np.ndarray) -> list[tuple[int, int, int]]:
        """Shards that overlap this lane's range, with the range of records to take from each."""
        stops = np.cumsum(self._shards.counts[shard_order])
        starts = stops - self._shards.counts[shard_order]
        first = np.maximum(self._start - starts, 0)
        last = np.minimum(self._start + self.num_records, stops) - starts
        return [(int(s), int(a), int(b)) for s, a, b in zip(shard_order, first, last, strict=True) if a < b]
