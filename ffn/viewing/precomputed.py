"""Sharded Neuroglancer precomputed volumes with mips.

Source of the format: Neuroglancer, ``src/datasource/precomputed/{volume,sharded}.md``. Axes are zyx here, xyz there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, divide_up, zyx
from ffn.io.atomic import write_text
from ffn.io.coarser import Downsample, Scale
from ffn.io.volume import Read
from ffn.viewing.mips import CHUNK_ZYX, SHARD_BYTES, Pyramid, shared_context

INFO = "info"  # file with the metadata
JPEG_QUALITY = 90


@dataclass(frozen=True)
class Encoding:
    """Storage format of one kind of volume."""

    kind: Literal["image", "segmentation"]
    dtype: str  # of a voxel
    chunks: Literal["jpeg", "png", "raw", "compressed_segmentation"]
    shards: Literal["raw", "gzip"]  # additional compression inside the shards
    downsample: Downsample
    options: dict[str, Any] = field(default_factory=dict)  # further members of the scale's metadata


LABELS = Encoding(
    "segmentation",
    "uint64",
    "compressed_segmentation",
    "gzip",
    "mode",
    {"compressed_segmentation_block_size": [8, 8, 8]},
)


def image_encoding(dtype: np.dtype, wanted: str, name: str) -> Encoding:
    """Return the encoding of an image: the `wanted` one, ``jpeg`` or ``png``, for 8 bits, raw in gzip for 16.

    cloud-volume cannot read PNG of 16 bits, and gzip compresses as well.
    """
    if dtype not in (np.uint8, np.uint16):
        raise ExportError(f"{name}: has type {dtype}, expected an image of uint8 or uint16. Ingest it as one of these")
    if dtype == np.uint16:
        return Encoding("image", "uint16", "raw", "gzip", "mean")
    if wanted == "jpeg":
        return Encoding("image", "uint8", "jpeg", "raw", "mean", {"jpeg_quality": JPEG_QUALITY})
    return Encoding("image", "uint8", "png", "raw", "mean")


def pyramid(path: Path, encoding: Encoding, scales: Sequence[Scale], read: Read) -> Pyramid:
    """Return the volume in a folder, which `create` has created, to write it."""

    def open_mip(mip: int) -> ts.TensorStore:
        return _open(path, mip, open=True, context=shared_context())

    # The grid of shards starts at the offset of the volume, like that of chunks.
    shards = [zyx(open_mip(mip).chunk_layout.write_chunk.shape or ()) for mip in range(len(scales))]
    return Pyramid(path.name, scales, open_mip, shards, encoding.downsample, read)


def create(path: Path, encoding: Encoding, scales: Sequence[Scale]) -> None:
    """Write the metadata of a volume without voxels, unless they are there."""
    if (path / INFO).exists():
        return
    context, memory = ts.Context(), {"driver": "memory", "path": "volume/"}
    for scale in scales:
        spec = _new_scale(encoding, scale) | {"kvstore": memory}
        ts.open(spec, create=True, open=True, context=context).result()
    files = ts.KvStore.open(memory, context=context).result()
    write_text(path / INFO, files.read(INFO).result().value.decode())


def open_scale(path: Path, mip: int) -> ts.TensorStore:
    """Open one mip for reading, with axes zyx in full-volume coordinates of that mip."""
    return _open(path, mip, read=True)


def _open(path: Path, mip: int, **options: Any) -> ts.TensorStore:
    kvstore = {"driver": "file", "path": f"{path.resolve()}/"}
    spec = {"driver": "neuroglancer_precomputed", "kvstore": kvstore, "scale_index": mip}
    return ts.open(spec, **options).result()[..., 0].T


def _new_scale(encoding: Encoding, scale: Scale) -> dict[str, Any]:
    """Return how TensorStore creates a mip."""
    return {
        "driver": "neuroglancer_precomputed",
        "multiscale_metadata": {"type": encoding.kind, "data_type": encoding.dtype, "num_channels": 1},
        "scale_metadata": {
            "size": scale.box.shape[::-1],
            "voxel_offset": scale.box.start[::-1],
            "resolution": scale.voxel_size_zyx_nm[::-1],
            "encoding": encoding.chunks,
            "chunk_size": CHUNK_ZYX[::-1],
            "sharding": _sharding(scale.box, encoding),
            **encoding.options,
        },
    }


def _sharding(box: Box, encoding: Encoding) -> dict[str, Any]:
    """Return a layout with shards of at most `SHARD_BYTES` decoded. Chunk ids are Morton codes, so shards are boxes."""
    chunk_bytes = math.prod(CHUNK_ZYX) * np.dtype(encoding.dtype).itemsize
    shard_bits = (SHARD_BYTES // chunk_bytes).bit_length() - 1
    grid: ZYX = divide_up(box.shape, CHUNK_ZYX)
    id_bits = sum((n - 1).bit_length() for n in grid)
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": shard_bits,
        "minishard_bits": 0,
        "shard_bits": max(0, id_bits - shard_bits),
        "minishard_index_encoding": "gzip",
        "data_encoding": encoding.shards,
    }
