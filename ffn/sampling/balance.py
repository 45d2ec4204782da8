"""Choose which coordinates become training records, and in which order.

Every partition contributes `quota` records. Their shuffle is a permutation that is computed, not stored, and a shard
is a range of it, so any process can make any shard without the others. Volumes share a partition by slots: a volume has
one slot per voxel, times its weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.training_records import coordinate_tables
from ffn.sampling.config import RecordsConfig
from ffn.sampling.shuffle import permutation_keys, permute

MAX_WEIGHT_RATIO = 1e6  # so that the slots of 10¹² voxels can be counted in 64 bits


@dataclass(frozen=True)
class RecordsPlan:
    """Everything that determines the records.

    `sizes` are the voxels of each volume by partition, `quota` the records of each partition, `weights` how often a
    voxel of each volume is drawn relative to the others.
    """

    paths: dict[str, str]
    sizes: dict[int, tuple[int, ...]]
    quota: int
    num_shards: int
    rng_seed: int
    weights: tuple[float, ...]

    def slots(self, partition: int) -> np.ndarray:
        """Return the number of slots of each volume in a round through a partition: its voxels times its weight."""
        relative = np.array(self.weights) / min(self.weights)
        return np.rint(np.array(self.sizes[partition]) * relative).astype(np.int64)

    @property
    def num_records(self) -> int:
        """Number of records in all shards."""
        return self.quota * len(self.sizes)

    def records_of(self, shard: int) -> tuple[int, int]:
        """Return the range of records in a shard, start and stop; the shards differ by at most one record."""
        return self.num_records * shard // self.num_shards, self.num_records * (shard + 1) // self.num_shards


def plan_records(
    paths: dict[str, str], config: RecordsConfig, rng_seed: int, weights: Mapping[str, float] | None = None
) -> RecordsPlan:
    """Count the coordinates and set how often each partition occurs."""
    given = weights or {}
    for name, weight in given.items():
        if name not in paths or not 0 < weight < float("inf"):
            raise RecordError(f"--weight: found {name}={weight:g}, expected a positive number for one of {list(paths)}")
    of_all = tuple(given.get(name, 1.0) for name in paths)
    if max(of_all) > MAX_WEIGHT_RATIO * min(of_all):
        found = f"--weight: {max(of_all):g} is more than {MAX_WEIGHT_RATIO:g} times {min(of_all):g}"
        raise RecordError(f"{found}, so the lighter volume would hardly ever be drawn. Leave it out")
    tables = [_table_sizes(path) for path in paths.values()]
    partitions = sorted(set().union(*tables))
    sizes = {partition: tuple(table.get(partition, 0) for table in tables) for partition in partitions}
    quota = max((sum(counts) for counts in sizes.values()), default=0)
    if config.max_records is not None:
        quota = min(quota, config.max_records // max(1, len(sizes)))
    plan = RecordsPlan(paths, sizes, quota, config.num_shards, rng_seed, of_all)
    if not quota:
        found = f"--max-records: {config.max_records} leaves no record for each of {len(sizes)} partitions"
        raise RecordError(f"{found} in {', '.join(plan.paths.values())}. Raise it or check the coordinates")
    if plan.num_records < config.num_shards:
        found = f"--num-shards: {config.num_shards} is more than the {plan.num_records} records"
        raise RecordError(f"{found}. Use fewer shards")
    return plan


def draw(plan: RecordsPlan, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Return partitions of records of the shuffled sequence, and the indices of their voxels, volume after volume."""
    items = permute(np.arange(start, stop), plan.num_records, _keys(plan))
    partitions = np.array(list(plan.sizes))[items // plan.quota]
    voxels = items % plan.quota
    for partition in plan.sizes:
        own = partitions == partition
        # The quota takes as many rounds through the slots as it needs; each round has another order.
        num_slots = int(plan.slots(partition).sum())
        rounds, slots = np.divmod(voxels[own], num_slots)
        slots = permute(slots, num_slots, _keys(plan, partition), rounds)
        voxels[own] = _voxels_at(plan, partition, rounds, slots)
    return partitions, voxels


def _voxels_at(plan: RecordsPlan, partition: int, rounds: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return the voxels that belong to slots of a partition.

    A volume with as many slots as voxels uses each voxel once per round. With another number of slots, it uses all its
    voxels before one repeats, each time in another order; the next round continues where the last one ended.
    """
    voxels = np.empty_like(slots)
    first_slot = first_voxel = 0
    for volume, (size, num_slots) in enumerate(zip(plan.sizes[partition], plan.slots(partition).tolist(), strict=True)):
        here = (slots >= first_slot) & (slots < first_slot + num_slots)
        local = slots[here] - first_slot
        if num_slots != size:
            cycles, local = np.divmod(rounds[here] * num_slots + local, size)
            local = permute(local, size, _keys(plan, partition, volume), cycles)
        voxels[here] = first_voxel + local
        first_slot, first_voxel = first_slot + num_slots, first_voxel + size
    return voxels


def _keys(plan: RecordsPlan, *stream: int) -> np.ndarray:
    """Keys of the shuffle of all records, of a partition, or of a volume in a partition."""
    return permutation_keys(np.random.default_rng([plan.rng_seed, len(stream), *stream]))


def _table_sizes(path: str) -> dict[int, int]:
    with hdf5.open_file(path, RecordError) as file:
        return {partition: len(table) for partition, table in coordinate_tables(file, path).items()}
