"""Which coordinates become training records, and in which order.

The multiset of records is a sequence of `quota` items for each partition, its shuffle a computed permutation.
A shard is a range of that permutation, so any process can make any shard without the others. Volumes share a
partition by the places they have in it, one for each voxel times the weight of the volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.config import RecordsConfig
from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.training_records import coordinate_tables
from ffn.sampling.shuffle import permutation_keys, permute

MAX_WEIGHT_RATIO = 1e6  # places of 10¹² voxels are then still counted in 64 bits


@dataclass(frozen=True)
class RecordsPlan:
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
    weights : tuple of float
        How often a voxel of each volume is drawn, relative to the others.
    """

    paths: dict[str, str]
    sizes: dict[int, tuple[int, ...]]
    quota: int
    num_shards: int
    rng_seed: int
    weights: tuple[float, ...]

    def places(self, partition: int) -> np.ndarray:
        """Return how many places each volume has in a round of a partition: its voxels times its weight."""
        relative = np.array(self.weights) / min(self.weights)
        return np.rint(np.array(self.sizes[partition]) * relative).astype(np.int64)

    @property
    def num_records(self) -> int:
        """Records in all shards."""
        return self.quota * len(self.sizes)

    def records_of(self, shard: int) -> tuple[int, int]:
        """First record of a shard and first of the next; lengths differ by one at most."""
        return self.num_records * shard // self.num_shards, self.num_records * (shard + 1) // self.num_shards


def plan_records(
    paths: dict[str, str], config: RecordsConfig, rng_seed: int, weights: Mapping[str, float] | None = None
) -> RecordsPlan:
    """Count the coordinates and settle how often each partition occurs.

    Raises
    ------
    RecordError
        If a file is unusable, there are fewer records than shards or partitions, or a weight is not positive, a
        millionth of another, or of a volume that is not there.
    """
    weights = weights or {}
    _require_weights(weights, paths)
    of_all = tuple(weights.get(name, 1.0) for name in paths)
    if max(of_all) > MAX_WEIGHT_RATIO * min(of_all):
        raise RecordError(
            f"--weight: {max(of_all):g} is more than {MAX_WEIGHT_RATIO:g} times {min(of_all):g}, which would hardly "
            "ever be drawn. Leave that volume out"
        )
    tables = [_table_sizes(path) for path in paths.values()]
    partitions = sorted(set().union(*tables))
    sizes = {partition: tuple(table.get(partition, 0) for table in tables) for partition in partitions}
    quota = max((sum(counts) for counts in sizes.values()), default=0)
    if config.max_records is not None:
        quota = min(quota, config.max_records // max(1, len(sizes)))
    plan = RecordsPlan(
        {name: str(path) for name, path in paths.items()},
        sizes,
        quota,
        config.num_shards,
        rng_seed,
        of_all,
    )
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


def draw(plan: RecordsPlan, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Pick the records `start` … `stop` - 1 of the shuffled multiset.

    Parameters
    ----------
    plan : RecordsPlan
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
    for partition in plan.sizes:
        own = partitions == partition
        # The quota goes through the places again and again; each round has an order of its own.
        num_places = int(plan.places(partition).sum())
        rounds, places = np.divmod(voxels[own], num_places)
        places = permute(places, num_places, _keys(plan, partition), rounds)
        voxels[own] = _voxels_at(plan, partition, rounds, places)
    return partitions, voxels


def _voxels_at(plan: RecordsPlan, partition: int, rounds: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Voxels that the places of a partition stand for, volume after volume.

    A volume with as many places as voxels has each voxel once in a round. One with more goes through all its
    voxels, in a new order, before one comes again, and goes on there in the next round.
    """
    voxels = np.empty_like(places)
    first_place = first_voxel = 0
    for volume, (size, num_places) in enumerate(
        zip(plan.sizes[partition], plan.places(partition).tolist(), strict=True)
    ):
        here = (places >= first_place) & (places < first_place + num_places)
        local = places[here] - first_place
        if num_places != size:
            turns, local = np.divmod(rounds[here] * num_places + local, size)
            local = permute(local, size, _keys(plan, partition, volume), turns)
        voxels[here] = first_voxel + local
        first_place, first_voxel = first_place + num_places, first_voxel + size
    return voxels


def _keys(plan: RecordsPlan, *stream: int) -> np.ndarray:
    """Keys of the shuffle of one volume in a partition, of the partition, or of the whole without one."""
    return permutation_keys(np.random.default_rng([plan.rng_seed, len(stream), *stream]))


def _table_sizes(path: str | Path) -> dict[int, int]:
    with hdf5.open_file(path, RecordError) as file:
        return {partition: len(table) for partition, table in coordinate_tables(file, path).items()}


def _require_weights(weights: Mapping[str, float], paths: Mapping[str, str]) -> None:
    for name, weight in weights.items():
        if name not in paths:
            raise RecordError(f"--weight: {name!r} is none of the volumes {list(paths)}. Name one of --coordinates")
        if not 0 < weight < float("inf"):
            raise RecordError(f"--weight: {weight:g} of {name!r}, expected a positive number")
