"""The files that sampling writes and training reads: tables of coordinates, and sharded training records."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.io.tfrecord import damaged, decode_example, read_records

OUTSIDE_PARTITION = 255  # partition of voxels without a whole LOM
COORDINATES_FORMAT = 1
COORDINATES_GROUP = "partitions"
INDEX_FORMAT = 1
INDEX_NAME = "index.json"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Entry):
    """One TFRecord file in a folder of records."""

    file: str
    num_records: PositiveInt
    sha256: str


class PartitionCounts(_Entry):
    """Numbers of voxels and records of a partition."""

    num_voxels: PositiveInt
    num_records: PositiveInt


class RecordIndex(_Entry):
    """Content of ``index.json``.

    `volumes` maps each name to its number of eligible voxels. `weights` tells how often a voxel of each volume was
    drawn, relative to the others; without weights, equally often.
    """

    format: int
    num_records: PositiveInt
    rng_seed: NonNegativeInt
    volumes: dict[str, PositiveInt]
    weights: dict[str, PositiveFloat] = {}
    partitions: dict[int, PartitionCounts]
    shards: tuple[Shard, ...]
    provenance: dict[str, Any]


def shard_name(shard: int, num_shards: int) -> str:
    """Return the file name of a shard.

    Examples
    --------
    >>> shard_name(7, 25)
    'coordinates-00007-of-00025.tfrecord.gz'
    """
    return f"coordinates-{shard:05d}-of-{num_shards:05d}.tfrecord.gz"


def load_index(folder: str | Path) -> RecordIndex:
    """Read and check the index of a folder of records."""
    path = Path(folder) / INDEX_NAME
    try:
        index = RecordIndex.model_validate(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{folder}: has no {INDEX_NAME}, expected a folder from 'ffn records'") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as reason:
        raise damaged(path, str(reason)) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    _require_consistent(path, index)
    return index


def read_shard(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read all coordinates of a shard, in the order of the file."""
    path = Path(path)
    centers_xyz, names = [], []
    for record in read_records(path):
        center_xyz, name = _decode(path, record)
        centers_xyz.append(center_xyz)
        names.append(name)
    if (path.parent / INDEX_NAME).is_file():
        _require_indexed(path, len(names))
    return np.array(centers_xyz, dtype=np.int64).reshape(-1, 3)[:, ::-1], np.array(names, dtype=np.str_)


def coordinate_tables(file: hdf5.Group, path: str | Path) -> dict[int, hdf5.Dataset]:
    """Return the tables in a file from 'ffn coordinates', by partition in ascending order."""
    if file.attrs.get("format") != COORDINATES_FORMAT or COORDINATES_GROUP not in file:
        raise RecordError(
            f"{path}: holds {sorted(hdf5.list_datasets(file))}, expected tables in '{COORDINATES_GROUP}' in "
            f"format {COORDINATES_FORMAT}. Was it written by 'ffn coordinates'?"
        )
    tables = hdf5.list_datasets(file[COORDINATES_GROUP])
    return {partition: tables[str(partition)] for partition in sorted(map(int, tables))}


def _decode(path: Path, record: bytes) -> tuple[list[int], str]:
    """Return the centre, xyz, and the volume of a record."""
    try:
        example = decode_example(record)
        center, (name,) = example["center"], example["label_volume_name"]
        x, y, z = center
        return [int(x), int(y), int(z)], name.decode()  # type: ignore[union-attr]
    except (KeyError, ValueError, TypeError, AttributeError) as reason:
        raise RecordError(
            f"{path}: holds an example that cannot be read ({reason!r}), expected 'center' (three integers) and "
            "'label_volume_name' (one text). Rerun the stage records"
        ) from None


def _require_consistent(path: Path, index: RecordIndex) -> None:
    if index.format != INDEX_FORMAT:
        raise RecordError(f"{path}: has format {index.format}, expected {INDEX_FORMAT}. Rerun the stage records")
    in_shards = sum(shard.num_records for shard in index.shards)
    if in_shards != index.num_records:
        raise damaged(path, f"its shards hold {in_shards} records, num_records is {index.num_records}")
    for shard in index.shards:
        file = path.parent / shard.file
        if not file.is_file():
            raise RecordError(
                f"{file}: no such file, expected every shard that the index lists. Rerun the stage records"
            )


def _require_indexed(path: Path, num_records: int) -> None:
    """Compare a shard with the index of its folder."""
    shards = {shard.file: shard for shard in load_index(path.parent).shards}
    if path.name not in shards:
        raise RecordError(
            f"{path}: is not in the index of its folder, expected one of {sorted(shards)}. Remove the file"
        )
    expected = shards[path.name]
    if num_records != expected.num_records:
        raise damaged(path, f"it holds {num_records} records, the index lists {expected.num_records}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected.sha256:
        raise damaged(path, "its SHA-256 differs from the index")
