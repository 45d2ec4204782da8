"""The record at each position of each lane: a pure function of random seed, lane and position.

A lane is one slot of the global batch. Every epoch permutes the shards, concatenates them, and cuts the sequence into
one equal range per lane. Each lane shuffles its range. Lanes do not wait for each other at the end of an epoch, so
shards of unequal length cannot stall any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
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


COLUMNS = 4  # of the table of records: centre, zyx, and number of the volume


class Record(NamedTuple):
    """The location of a training example, full-volume voxels."""

    center_zyx: ZYX
    volume: str


class RecordTable:
    """All records, one shard after the other; `rows`, int32 (N, `COLUMNS`), are there once they are read."""

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], volumes: Sequence[str]) -> None:
        self.paths, self.volumes = list(paths), list(volumes)
        self.counts = np.asarray(counts, np.int64)
        self.starts = np.cumsum(self.counts) - self.counts
        self.rows = np.empty((0, COLUMNS), np.int32)

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


class LaneStream:
    """The endless sequence of records of one lane."""

    def __init__(self, records: RecordTable, lane: int, num_lanes: int, rng_seed: int) -> None:
        self.lane = lane
        self._records = records
        self._rng_seed = rng_seed
        self._start = lane * records.total // num_lanes
        self.num_records = (lane + 1) * records.total // num_lanes - self._start
        self._epoch: tuple[int, np.ndarray] | None = None

    def record(self, position: int) -> Record:
        """Return the record at `position`, which counts over all epochs from the start of training."""
        epoch, index = divmod(position, self.num_records)
        held = self._epoch
        if held is None or held[0] != epoch:
            self._epoch = held = (epoch, self._order(epoch))
        rows = held[1]  # not the attribute, which another thread may have replaced
        *center, volume = self._records.rows[rows[index]].tolist()
        return Record(zyx(center), self._records.volumes[volume])

    def _order(self, epoch: int) -> np.ndarray:
        """Return the rows of this lane's range in the order of this epoch."""
        shards = generator(self._rng_seed, "shard order", epoch).permutation(len(self._records.counts))
        stops = np.cumsum(self._records.counts[shards])
        places = np.arange(self._start, self._start + self.num_records)
        which = np.searchsorted(stops, places, side="right")
        rows = places - stops[which] + (self._records.starts + self._records.counts)[shards[which]]
        return rows[generator(self._rng_seed, "lane order", epoch, self.lane).permutation(self.num_records)]
