"""Stage `records`: write balanced, shuffled, sharded TFRecord files of coordinates.

Every partition contributes `quota` records. Their shuffle is a permutation that is computed, not stored, and a shard
is a range of it, so any process can make any shard without the others. Volumes share a partition by slots: a volume has
one slot per voxel, times its weight.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.errors import RecordError
from ffn.io import hdf5, training_records
from ffn.io.atomic import atomic_path, write_json
from ffn.io.faults import unreadable
from ffn.io.training_records import (
    INDEX_NAME,
    PartitionCounts,
    RecordIndex,
    Shard,
    coordinate_tables,
    encode_example,
    shard_name,
)
from ffn.options import add_options, from_arguments, parse_named, whole_number
from ffn.progress import track
from ffn.provenance import provenance
from ffn.sampling.config import RecordsConfig
from ffn.sampling.shuffle import permutation_keys, permute

log = logging.getLogger(__name__)

# Partitions with fewer coordinates get no records, unless they have this share of all coordinates. Each partition is an
# equal part of the records: in a small box, three voxels were an eighth, and one lay in another body. Our choice.
MIN_VOXELS, MIN_SHARE = 100, 0.003
MAX_WEIGHT_RATIO = 1e6  # so that the slots of 10¹² voxels can be counted in 64 bits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write balanced, shuffled, sharded TFRecord files of coordinates: all but tiny partitions occur equally often."""
    text = "volume names for training, and files from 'ffn coordinates'"
    parser.add_argument("--coordinates", required=True, nargs="+", metavar="NAME=FILE.h5", help=text)
    text = "how often a voxel of this volume is drawn, relative to other volumes (default: 1); can be repeated"
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=WEIGHT", help=text)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of shards and index.json")
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of all shuffles (default: 1)"
    )
    add_options(parser, RecordsConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    paths = parse_named("--coordinates", arguments.coordinates)
    weights = parse_named("--weight", arguments.weight, float)
    config = from_arguments(RecordsConfig, arguments)
    records(paths, arguments.out, config, arguments.rng_seed, weights)


def records(
    paths: dict[str, str],
    out_dir: str | Path,
    config: RecordsConfig,
    rng_seed: int = 1,
    weights: Mapping[str, float] | None = None,
) -> RecordIndex:
    """Write a folder of training records.

    All but tiny partitions contribute equally often. Each pools the voxels of all volumes, so each voxel counts the
    same, times the weight of its volume. Its voxels are shuffled and repeated, in another order each time, up to the
    size of the largest partition or to its share of ``config.max_records``. A partition larger than that is sampled
    without replacement.

    Parameters
    ----------
    paths : dict of str to path
        File from 'ffn coordinates' for each volume, by the name that training uses.
    out_dir : path
        Folder of GZIP TFRecord shards and ``index.json``, written atomically. It replaces an earlier folder of records,
        but nothing else.
    config : RecordsConfig
        Number of shards and records.
    rng_seed : int
        Random seed; the same seed gives the same bytes.
    weights : mapping of str to float, optional
        How often a voxel of a volume is drawn, relative to voxels of the same partition in other volumes; default: 1.
        The number of records does not depend on weights.

    Returns
    -------
    RecordIndex
        Index of the folder.

    Raises
    ------
    RecordError
        If a file of coordinates or a weight is unusable, there are fewer records than shards or partitions, or the
        folder holds other files.
    """
    plan = plan_records(paths, config, rng_seed, weights)
    out_dir = Path(out_dir).absolute()
    _require_replaceable(out_dir)
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        numbers = track(range(plan.num_shards), plan.num_shards, "records", unit="shard")
        index = _index(plan, tuple(write_shard(plan, folder, shard) for shard in numbers), config)
        write_json(folder / INDEX_NAME, index.model_dump(mode="json"))
    log.info("%s: %d records of %d partitions", out_dir, plan.num_records, len(plan.sizes))
    return index


def write_shard(plan: RecordsPlan, folder: Path, shard: int) -> Shard:
    """Write one shard to `folder` and return its entry in the index."""
    partitions, voxels = draw(plan, *plan.records_of(shard))
    centers_zyx, volumes = _look_up(plan, partitions, voxels)
    names, path = list(plan.paths), folder / shard_name(shard, plan.num_shards)
    found = zip(centers_zyx[:, ::-1].tolist(), volumes, strict=True)
    digest = training_records.write_shard(path, (encode_example(xyz, names[n]) for xyz, n in found))
    return Shard(file=path.name, num_records=len(volumes), sha256=digest)


def _look_up(plan: RecordsPlan, partitions: np.ndarray, voxels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the coordinates, zyx, and the volume numbers of voxels, given by their index in a partition."""
    centers = np.empty((len(voxels), 3), dtype=np.int64)
    volumes = np.empty(len(voxels), dtype=np.int64)
    for volume, path in enumerate(plan.paths.values()):
        with hdf5.open_file(path, RecordError) as file:
            for partition in plan.sizes.keys() & (tables := coordinate_tables(file, path)).keys():
                table, first = tables[partition], sum(plan.sizes[partition][:volume])
                here = (voxels >= first) & (voxels < first + len(table))
                own = np.flatnonzero(here & (partitions == partition))
                volumes[own] = volume
                with unreadable(path, hdf5.WHOLE, RecordError):
                    centers[own] = hdf5.take_rows(table, voxels[own] - first)
    return centers, volumes


def _index(plan: RecordsPlan, shards: tuple[Shard, ...], config: RecordsConfig) -> RecordIndex:
    per_volume = np.array(list(plan.sizes.values())).sum(axis=0).tolist()
    counts = {p: PartitionCounts(num_voxels=sum(n), num_records=plan.quota) for p, n in plan.sizes.items()}
    inputs = [f"{name}={path}" for name, path in plan.paths.items()]
    return RecordIndex(
        num_records=plan.num_records,
        rng_seed=plan.rng_seed,
        volumes=dict(zip(plan.paths, per_volume, strict=True)),
        weights=dict(zip(plan.paths, plan.weights, strict=True)),
        partitions=counts,
        shards=shards,
        provenance=provenance("records", config, coordinates=" ".join(inputs)),
    )


def _require_replaceable(path: Path) -> None:
    """Check that replacing the folder loses nothing but records."""
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    foreign = [name for name in names if name != INDEX_NAME and not name.endswith(".tfrecord.gz")]
    if foreign:
        raise RecordError(f"{path}: holds {foreign[0]!r}, expected no folder or a folder of records. Choose another")


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
    """Count the coordinates and set how often each partition occurs; tiny ones do not."""
    given = weights or {}
    for name, weight in given.items():
        if name not in paths or not 0 < weight < float("inf"):
            raise RecordError(f"--weight: found {name}={weight:g}, expected a positive number for one of {list(paths)}")
    of_all = tuple(given.get(name, 1.0) for name in paths)
    if max(of_all) > MAX_WEIGHT_RATIO * min(of_all):
        found = f"--weight: {max(of_all):g} is more than {MAX_WEIGHT_RATIO:g} times {min(of_all):g}"
        raise RecordError(f"{found}, so the lighter volume would hardly ever be drawn. Leave it out")
    tables = [_table_sizes(path) for path in paths.values()]
    sizes = {each: tuple(table.get(each, 0) for table in tables) for each in sorted(set().union(*tables))}
    least = min(MIN_VOXELS, MIN_SHARE * sum(map(sum, sizes.values())))
    sizes = {partition: counts for partition, counts in sizes.items() if sum(counts) >= least}
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
