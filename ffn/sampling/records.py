"""Stage `records`: write balanced, shuffled, sharded TFRecord files of coordinates."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.atomic import atomic_path, unreadable, write_json
from ffn.io.training_records import INDEX_NAME, PartitionCounts, RecordIndex, encode_example, shard_name, write_shard
from ffn.options import add_options, from_arguments, parse_named, whole_number
from ffn.progress import track
from ffn.provenance import provenance
from ffn.sampling.config import RecordsConfig
from ffn.sampling.coordinates import coordinate_tables

log = logging.getLogger(__name__)

# Partitions with fewer coordinates get no records, unless they have this share of all coordinates. Each partition is an
# equal part of the records: in a small box, three voxels were an eighth, and one lay in another body. Our choice.
MIN_VOXELS, MIN_SHARE = 100, 0.003

Tables = Mapping[str, Mapping[int, hdf5.Dataset]]  # of coordinates, by volume and partition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write balanced, shuffled, sharded TFRecord files of coordinates: all but tiny partitions occur equally often.

    example:
      ffn records --coordinates fib25=coordinates.h5 --num-shards 16 --out records/
    """
    text = "volume names for training, and files from 'ffn coordinates'"
    parser.add_argument("--coordinates", required=True, nargs="+", metavar="NAME=FILE.h5", help=text)
    text = "how often a voxel of this volume is drawn, relative to other volumes (default: 1); can be repeated"
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=WEIGHT", help=text)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of shards and index.json")
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of all shuffles (default: 1)"
    )
    add_options(parser, RecordsConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    paths = parse_named("--coordinates", arguments.coordinates)
    weights = parse_named("--weight", arguments.weight, float)
    records(paths, arguments.out, from_arguments(RecordsConfig, arguments), arguments.rng_seed, weights)


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

    `paths` has the file of coordinates of each volume, by the name that training uses; the weights say how often a
    voxel of a volume is drawn, relative to voxels of the same partition in other volumes. The number of records does
    not depend on them. The folder, GZIP TFRecord shards and ``index.json``, is written atomically, and replaces an
    earlier folder of records, but nothing else. The same seed gives the same bytes.

    Raises
    ------
    RecordError
        If a file of coordinates or a weight is unusable, there are fewer records than shards or partitions, or the
        folder holds other files.
    """
    given = weights or {}
    for name, weight in given.items():
        if name not in paths or not 0 < weight < float("inf"):
            raise RecordError(f"--weight: found {name}={weight:g}, expected a positive number for one of {list(paths)}")
    out_dir = Path(out_dir).absolute()
    _require_replaceable(out_dir)
    weight_of = {name: given.get(name, 1.0) for name in paths}
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(hdf5.open_file(path, RecordError)) for name, path in paths.items()}
        tables = {name: coordinate_tables(file, paths[name]) for name, file in files.items()}
        sizes = partition_sizes(tables)
        quota = _quota(sizes, config, paths)
        with unreadable(", ".join(paths.values()), hdf5.WHOLE, RecordError):
            rows = draw(tables, sizes, quota, weight_of, np.random.default_rng(rng_seed))
    with atomic_path(out_dir) as folder:
        folder.mkdir()
        parts = track(np.array_split(rows, config.num_shards), config.num_shards, "records", unit="shard")
        volumes, shards = list(paths), []
        for number, part in enumerate(parts):
            examples = (encode_example((x, y, z), volumes[volume]) for z, y, x, volume in part.tolist())
            shards.append(write_shard(folder / shard_name(number, config.num_shards), examples))
        index = RecordIndex(
            num_records=len(rows),
            rng_seed=rng_seed,
            volumes=dict(zip(paths, np.sum(list(sizes.values()), axis=0).tolist(), strict=True)),
            weights=weight_of,
            partitions={p: PartitionCounts(num_voxels=sum(n), num_records=quota) for p, n in sizes.items()},
            shards=tuple(shards),
            provenance=provenance("records", config, coordinates=" ".join(f"{n}={path}" for n, path in paths.items())),
        )
        write_json(folder / INDEX_NAME, index.model_dump(mode="json"))
    log.info("%s: %d records of %d partitions", out_dir, len(rows), len(sizes))
    return index


def partition_sizes(tables: Tables) -> dict[int, list[int]]:
    """Return the voxels of each volume by partition, without tiny partitions."""
    sizes = {
        each: [len(table.get(each, ())) for table in tables.values()] for each in sorted(set().union(*tables.values()))
    }
    least = min(MIN_VOXELS, MIN_SHARE * sum(map(sum, sizes.values())))
    return {partition: counts for partition, counts in sizes.items() if sum(counts) >= least}


def _quota(sizes: Mapping[int, Sequence[int]], config: RecordsConfig, paths: Mapping[str, str]) -> int:
    """Return the number of records of each partition."""
    quota = max(map(sum, sizes.values()), default=0)
    if config.max_records is not None:
        quota = min(quota, config.max_records // max(1, len(sizes)))
    if not quota:
        found = f"--max-records: {config.max_records} leaves no record for each of {len(sizes)} partitions"
        raise RecordError(f"{found} in {', '.join(paths.values())}. Raise it or check the coordinates")
    if quota * len(sizes) < config.num_shards:
        found = f"--num-shards: {config.num_shards} is more than the {quota * len(sizes)} records"
        raise RecordError(f"{found}. Use fewer shards")
    return quota


def draw(
    tables: Tables,
    sizes: Mapping[int, Sequence[int]],
    quota: int,
    weights: Mapping[str, float],
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the records in random order, int32 (N, 4): a centre, zyx, and the number of its volume.

    In memory, as training keeps them.
    """
    rows = np.empty((quota * len(sizes), 4), np.int32)
    start = 0
    for partition, counts in sizes.items():
        shares = np.cumsum([0.0, *np.multiply(counts, list(weights.values()))])
        stops = start + np.rint(quota * shares / shares[-1]).astype(int)
        for volume, (table, size) in enumerate(zip(tables.values(), counts, strict=True)):
            part = rows[stops[volume] : stops[volume + 1]]
            if len(part):
                part[:, :3] = hdf5.take_rows(table[partition], _in_rounds(size, len(part), rng))
                part[:, 3] = volume
        start += quota
    rng.shuffle(rows)
    return rows


def _in_rounds(size: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw so many of `size` voxels that each has its turn before one repeats."""
    rounds, rest = divmod(number, size)
    return np.concatenate([*(rng.permutation(size) for _ in range(rounds)), rng.choice(size, rest, replace=False)])


def _require_replaceable(path: Path) -> None:
    """Check that replacing the folder loses nothing but records."""
    names = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    foreign = [name for name in names if name != INDEX_NAME and not name.endswith(".tfrecord.gz")]
    if foreign:
        raise RecordError(f"{path}: holds {foreign[0]!r}, expected no folder or a folder of records. Choose another")
