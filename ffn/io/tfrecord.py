"""Read and write TFRecord files of `tf.train.Example` without TensorFlow.

A record consists of its length (uint64), the masked CRC-32C of the length, the content, and the masked CRC-32C of the
content, all little endian. An Example maps names to lists of integers or byte strings.
"""

from __future__ import annotations

import functools
import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c

from ffn.errors import RecordError

COMPRESSION_LEVEL = 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

Feature = list[int] | list[bytes]


def write_records(path: str | Path, records: Iterable[bytes]) -> None:
    """Write a GZIP TFRecord file; equal records give equal bytes (its header has no name and no time)."""
    with (
        open(path, "wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=COMPRESSION_LEVEL) as file,
    ):
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(b"".join((length, _checksum(length), record, _checksum(record))))


def read_records(path: str | Path) -> Iterator[bytes]:
    """Yield the records of a GZIP TFRecord file."""
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file, expected a shard of records. Rerun the stage records") from None
    except (OSError, EOFError, zlib.error) as reason:
        raise damaged(path, str(reason)) from None
    position = 0
    while position < len(content):
        length = content[position : position + 8]
        stop = position + 12 + int.from_bytes(length, "little")
        if stop + 4 > len(content) or _checksum(length) != content[position + 8 : position + 12]:
            raise damaged(path, f"the length of the record at byte {position} is wrong")
        record = content[position + 12 : stop]
        if _checksum(record) != content[stop : stop + 4]:
            raise damaged(path, f"the checksum of the record at byte {position} is wrong")
        yield record
        position = stop + 4


def damaged(path: str | Path, reason: str) -> RecordError:
    """Return the error for a damaged file of records."""
    return RecordError(
        f"{path}: is damaged ({reason}), expected a whole file. Delete its folder and rerun the stage records"
    )


def encode_example(features: dict[str, Feature]) -> bytes:
    """Serialise 64-bit integers and byte strings as a `tf.train.Example`.

    Examples
    --------
    >>> decode_example(encode_example({"center": [7, 300, -2], "name": [b"a"]}))
    {'center': [7, 300, -2], 'name': [b'a']}
    """
    entries = [_field(1, name.encode()) + _field(2, _encode_feature(v)) for name, v in features.items()]
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def decode_example(data: bytes) -> dict[str, Feature]:
    """Read a serialised `tf.train.Example` without its float features."""
    found = {}
    for _, features in _fields(data):
        for _, entry in _fields(_as_bytes(features)):
            parts = dict(_fields(_as_bytes(entry)))
            found[_as_bytes(parts[1]).decode()] = _decode_feature(_as_bytes(parts.get(2, b"")))
    return found


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TFRecord files have it."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _encode_feature(values: Feature) -> bytes:
    if values and isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, value) for value in values))
    return _field(3, _field(1, b"".join(map(_varint, values))))


def _decode_feature(data: bytes) -> Feature:
    for kind, content in _fields(data):
        values = [value for _, value in _fields(_as_bytes(content))]
        if kind == 1:
            return [_as_bytes(value) for value in values]
        if kind == 3:
            numbers = (n for value in values for n in ([value] if isinstance(value, int) else _varints(value)))
            return [n - 2**64 if n >= 2**63 else n for n in numbers]
    return []


def _field(number: int, content: bytes) -> bytes:
    """Encode a length-delimited field."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and content of every field of a message."""
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        kind, value = tag & 7, 0
        if kind in (_VARINT, _BYTES):
            value, position = _read_varint(data, position)
        size = value if kind == _BYTES else 0 if kind == _VARINT else _FIXED_BYTES.get(kind, len(data))
        if position + size > len(data):
            raise ValueError(f"field {tag >> 3} reaches beyond its message of {len(data)} bytes")
        yield tag >> 3, value if kind == _VARINT else data[position : position + size]
        position += size


@functools.lru_cache(maxsize=65_536)  # lengths, tags and coordinates repeat; this halves the time
def _varint(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1  # negative numbers are stored as two's complement
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number reaches beyond its message")


def _varints(data: bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"found the number {value}, expected bytes")
    return value
