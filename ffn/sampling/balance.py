"""Which coordinates become training records, and in which order.

The multiset of records is a sequence of `quota` items for each partition, its shuffle a computed permutation.
A shard is a range of that permutation, so any process can make any shard without the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn import hdf5
from ffn.config import RecordsConfig
from ffn.errors import RecordError
from ffn.records import coordinate_tables
from ffn.sampling.shuffle import permutation_keys, permute


@dataclass(frozen=True)
class Plan:
    """All that determines the records.

    Parameters
    ----------
    paths : dict of str to str
        File of coordinates of each volume.
    sizes : dict of int to tuple of int
        For each partition the number of voxels in each volume.
    quota : int
        Records of each partition.
    num_shards : int
        Files.
    rng_seed : int
        Of every shuffle.
    """

    paths: dict[str, str]
    sizes: dict[int, tuple[int, ...]]
    quota: int
    num_shards: int
    rng_seed: int

    @property
    def num_records(self) -> int:
        """Records in all shards."""
        return self.quota * len(self.sizes)

    def records_of(self, shard: int) -> tuple[int, int]:
        """First record of a shard and first of the next; lengths differ by one at most."""
        return self.num_records * shard // self.num_shards, self.num_records * (shard + 1) // self.num_shards


def make_plan(paths: dict[str, str], config: RecordsConfig, rng_seed: int) -> Plan:
    """Count the coordinates and settle how often each partition occurs.

    Raises
    ------
    RecordError
        If a file is unusable, or there are fewer records than shards or partitions.
    """
    tables = [_table_sizes(path) for path in paths.values()]
    partitions = sorted(set().union(*tables))
    sizes = {partition: tuple(table.get(partition, 0) for table in tables) for partition in partitions}
    quota = max((sum(counts) for counts in sizes.values()), default=0)
    if config.max_records is not None:
        quota = min(quota, config.max_records // max(1, len(sizes)))
    plan = Plan({name: str(path) for name, path in paths.items()}, sizes, quota, config.num_shards, rng_seed)
    if not quota:
        raise RecordError(
            f"--max-records: {config.max_records} leaves none for each of the {len(sizes)} partitions of "
            f"{', '.join(plan.paths.values())}. Raise it or check the coordinates"
        )
    if plan.num_records < config.num_shards:
        raise RecordError(
            f"--num-shards: {config.num_shards} is more than the {plan.num_records} records. Use fewer shards"
        )
    return plan


def draw(plan: Plan, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Pick the records `start` … `stop` - 1 of the shuffled multiset.

    Parameters
    ----------
    plan : Plan
        Sizes, quota and seed.
    start, stop : int
        Part of 0 … ``plan.num_records``.

    Returns
    -------
    int64 ndarray of shape (N,), int64 ndarray of shape (N,)
        Partition of each record, and the index of its voxel among the partition's, volume after volume.
    """
    items = permute(np.arange(start, stop), plan.num_records, _keys(plan))
    partitions = np.array(list(plan.sizes))[items // plan.quota]
    voxels = items % plan.quota
    for partition, sizes in plan.sizes.items():
        own = partitions == partition
        # The quota goes through the voxels again and again; each round has an order of its own.
        rounds, places = np.divmod(voxels[own], sum(sizes))
        voxels[own] = permute(places, sum(sizes), _keys(plan, partition), rounds)
    return partitions, voxels


def _keys(plan: Plan, *stream: int) -> np.ndarray:
    """Keys of the shuffle of one partition, or of the whole without one."""
    return permutation_keys(np.random.default_rng([plan.rng_seed, len(stream), *stream]))


def _table_sizes(path: str | Path) -> dict[int, int]:
    with hdf5.open_file(path, RecordError) as file:
        return {partition: len(table) for partition, table in coordinate_tables(file, path).items()}
