"""The files that sampling writes and training reads: sharded training records.

A shard is a GZIP TFRecord file of `tf.train.Example`, written without TensorFlow. A record consists of its length
(uint64), the masked CRC-32C of the length, the content, and the masked CRC-32C of the content, all little endian.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from ffn.errors import RecordError, explain
from ffn.io.atomic import unreadable

OUTSIDE_PARTITION = 255  # partition of voxels without a whole LOM
INDEX_NAME = "index.json"
COMPRESSION_LEVEL = 6
CENTER, VOLUME = "center", "label_volume_name"  # google/ffn's names of the features of an example
WHOLE = "a whole file. Delete its folder and rerun the stage records"
MAX_RECORD_BYTES = 2**16  # three numbers and the name of a volume need some hundred


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

    format: Literal[1] = 1
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
        return RecordIndex.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{folder}: has no {INDEX_NAME}, expected a folder from 'ffn records'") from None
    except ValidationError as error:
        raise RecordError(f"{path}: {explain(error, '.'.join)}, expected {WHOLE}") from None


def write_shard(path: Path, examples: Iterable[bytes]) -> Shard:
    """Write a shard and return its entry of the index; equal examples give equal bytes (no name, no time in it)."""
    num_records = 0
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=COMPRESSION_LEVEL) as file,
    ):
        for example in examples:
            num_records += 1
            length = struct.pack("<Q", len(example))
            file.write(b"".join((length, _checksum(length), example, _checksum(example))))
    return Shard(file=path.name, num_records=num_records, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def read_shard(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the coordinates, zyx, and the volumes of a shard of an index, in the order of the file."""
    path = Path(path)
    shard = next((each for each in load_index(path.parent).shards if each.file == path.name), None)
    with unreadable(path, WHOLE, RecordError), gzip.open(io.BytesIO(content := path.read_bytes())) as file:
        if shard is None or hashlib.sha256(content).hexdigest() != shard.sha256:
            raise ValueError("its SHA-256 differs from the index")
        examples = list(map(decode_example, _contents(io.BufferedReader(file), shard.num_records)))
    centers_xyz = np.array([center for center, _ in examples], dtype=np.int64)
    return centers_xyz.reshape(-1, 3)[:, ::-1], np.array([volume for _, volume in examples], dtype=np.str_)


def encode_example(center_xyz: Sequence[int], volume: str) -> bytes:
    """Serialise a place in a volume as a `tf.train.Example`.

    Examples
    --------
    >>> decode_example(encode_example((7, 300, -2), "a"))
    ([7, 300, -2], 'a')
    """
    features = {
        CENTER: _field(3, _field(1, b"".join(map(_varint, center_xyz)))),
        VOLUME: _field(1, _field(1, volume.encode())),
    }
    entries = (_field(1, name.encode()) + _field(2, feature) for name, feature in features.items())
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def decode_example(data: bytes) -> tuple[list[int], str]:
    """Read an example of `encode_example`."""
    (entries,) = _fields(data)
    features = dict(map(_fields, _fields(entries)))
    (centers,), (volumes,) = _fields(features[CENTER.encode()]), _fields(features[VOLUME.encode()])
    (packed,), (volume,) = _fields(centers), _fields(volumes)
    center, position = [], 0
    while position < len(packed):
        value, position = _read_varint(packed, position)
        center.append(value - 2**64 if value >= 2**63 else value)
    return center, volume.decode()


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TFRecord files have it."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _contents(file: io.BufferedReader, num_records: int) -> Iterator[bytes]:
    """Yield the records one by one, so that a file that unpacks to gigabytes ends at the first one that is too long."""
    for number in range(num_records):
        (length,) = struct.unpack("<Q4x", file.read(12))
        if not 0 < length <= MAX_RECORD_BYTES:
            raise ValueError(f"record {number} has {length} bytes, expected 1 to {MAX_RECORD_BYTES}")
        yield file.read(length)
        file.read(4)
    if file.read(1):
        raise ValueError(f"holds more than the {num_records} records of the index")


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field of protobuf."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _fields(data: bytes) -> list[bytes]:
    """Return the contents of the length-delimited fields of a message; our messages have no others."""
    found, position = [], 0
    while position < len(data):
        length, start = _read_varint(data, position + 1)
        position = start + length
        found.append(data[start:position])
    return found


@functools.lru_cache(maxsize=65_536)  # lengths and coordinates repeat; this halves the time
def _varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1  # negative numbers are stored as two's complement
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number, and the position after it."""
    value = shift = 0
    while data[position] > 0x7F:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1
