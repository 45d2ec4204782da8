"""Stage `records`: write balanced, shuffled, sharded TFRecord files of coordinates."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
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
from ffn.sampling.balance import RecordsPlan, draw, plan_records
from ffn.sampling.config import RecordsConfig

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write balanced, shuffled, sharded TFRecord files of coordinates: every partition occurs equally often."""
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

    Every partition contributes equally often. It pools the voxels of all volumes, so each voxel counts the same, times
    the weight of its volume. Its voxels are shuffled and repeated, in another order each time, up to the size of the
    largest partition or to its share of ``config.max_records``. A partition larger than that is sampled without
    replacement.

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
            for partition, table in coordinate_tables(file, path).items():
                first = sum(plan.sizes[partition][:volume])
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
