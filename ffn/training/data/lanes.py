"""Which record each lane of the global batch trains on: a pure function of seed, lane and position.

A lane is one slot of the global batch. Every epoch permutes the shards, lays them end to end, cuts the line
into as many equal ranges as there are lanes, and each lane shuffles its own range. Lanes do not wait for each
other at the end of an epoch, so no number of processes can hang on shards of unequal length.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.errors import RecordError
from ffn.geometry import ZYX, zyx
from ffn.training.data.randomness import generator

CACHED_SHARDS = 4  # neighbouring lanes of a process read the same few shards when an epoch starts

ShardRecords = tuple[np.ndarray, np.ndarray]


class Record(NamedTuple):
    """Where a training example lies.

    Parameters
    ----------
    center_zyx : tuple of int
        Full-volume voxels.
    volume : str
        Name of the volume.
    """

    center_zyx: ZYX
    volume: str


class Shards:
    """The files of one set of records.

    Parameters
    ----------
    paths : sequence of Path
        Shard files.
    counts : sequence of int
        Records in each of them.
    read : callable
        Returns the centres, int64 of shape (N, 3), zyx, and the volume names, shape (N,), of a file.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], read: Callable[[Path], ShardRecords]) -> None:
        self.paths = list(paths)
        self.counts = np.asarray(counts, np.int64)
        self._read = functools.lru_cache(CACHED_SHARDS)(read)

    @property
    def total(self) -> int:
        """Records in all shards."""
        return int(self.counts.sum())

    def require_lanes(self, num_lanes: int) -> None:
        """Check that each lane gets a record in every epoch.

        Raises
        ------
        RecordError
            If there are fewer records than lanes.
        """
        if self.total < num_lanes:
            raise RecordError(
                f"{self.paths[0].parent}: has {self.total} records, expected at least num_workers × "
                f"virtual_workers × batch_size = {num_lanes}. Make more records or use fewer workers"
            )

    def read(self, index: int) -> ShardRecords:
        """Return centres and volume names of one shard."""
        return self._read(self.paths[index])


class LaneStream:
    """The endless sequence of records of one lane.

    Parameters
    ----------
    shards : Shards
        All records.
    lane, num_lanes : int
        This lane, and how many share the records.
    rng_seed : int
        Seed of the run.
    """

    def __init__(self, shards: Shards, lane: int, num_lanes: int, rng_seed: int) -> None:
        self.lane = lane
        self._shards = shards
        self._rng_seed = rng_seed
        self._start = lane * shards.total // num_lanes
        self.num_records = (lane + 1) * shards.total // num_lanes - self._start
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None

    def record(self, position: int) -> Record:
        """Return the record at `position`, counted from the start of training over all epochs."""
        epoch, index = divmod(position, self.num_records)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, *self._load_epoch(epoch))
        _, centers_zyx, names = self._epoch
        return Record(zyx(centers_zyx[index]), str(names[index]))

    def _load_epoch(self, epoch: int) -> ShardRecords:
        """Centres and names of this lane's range, in the order of this epoch."""
        shard_order = generator(self._rng_seed, "shard order", epoch).permutation(len(self._shards.paths))
        parts = []
        for index, first, last in self._overlaps(shard_order):
            centers_zyx, names = self._shards.read(index)
            parts.append((centers_zyx[first:last], names[first:last]))
        order = generator(self._rng_seed, "lane order", epoch, self.lane).permutation(self.num_records)
        centers_zyx, names = (np.concatenate(column) for column in zip(*parts, strict=True))
        return centers_zyx[order], names[order]

    def _overlaps(self, shard_order: np.ndarray) -> list[tuple[int, int, int]]:
        """Shards that overlap this lane's range of the line, and which records to take from each."""
        stops = np.cumsum(self._shards.counts[shard_order])
        starts = stops - self._shards.counts[shard_order]
        first = np.maximum(self._start - starts, 0)
        last = np.minimum(self._start + self.num_records, stops) - starts
        return [(int(s), int(a), int(b)) for s, a, b in zip(shard_order, first, last, strict=True) if a < b]
