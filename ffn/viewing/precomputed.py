"""Sharded Neuroglancer precomputed volumes with mips.

Source of the format: Neuroglancer, ``src/datasource/precomputed/{volume,sharded}.md``. Axes are zyx here, xyz there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, divide_up, zyx
from ffn.io.atomic import write_text
from ffn.io.coarser import Downsample, Scale
from ffn.io.volume import Read
from ffn.viewing.mips import CHUNK_ZYX, SHARD_BYTES, Level, Pyramid, shared_context

INFO = "info"  # file with the metadata
JPEG_QUALITY = 90


@dataclass(frozen=True)
class Encoding:
    """Storage format of one kind of volume.

    Parameters
    ----------
    kind : str
        ``image`` or ``segmentation``.
    dtype : str
        Type of a voxel.
    chunks : str
        Encoding of a chunk: ``jpeg``, ``png``, ``raw`` or ``compressed_segmentation``.
    shards : str
        Additional compression inside the shards: ``raw`` or ``gzip``.
    downsample : str
        ``mean`` or ``mode``.
    options : dict
        Further members of the scale's metadata.
    """

    kind: Literal["image", "segmentation"]
    dtype: str
    chunks: str
    shards: Literal["raw", "gzip"]
    downsample: Downsample
    options: dict[str, Any] = field(default_factory=dict)


LABELS = Encoding(
    "segmentation",
    "uint64",
    "compressed_segmentation",
    "gzip",
    "mode",
    {"compressed_segmentation_block_size": [8, 8, 8]},
)


def image_encoding(dtype: np.dtype, wanted: str, name: str) -> Encoding:
    """Choose the encoding of an image.

    Parameters
    ----------
    dtype : numpy.dtype
        Type of a voxel.
    wanted : str
        ``jpeg`` or ``png``, of 8 bits. With 16, cloud-volume cannot read PNG, and what gzip leaves is as small.
    name : str
        Name of the volume, for messages.

    Raises
    ------
    ExportError
        If Neuroglancer has no compressed encoding for `dtype`.
    """
    if dtype not in (np.uint8, np.uint16):
        raise ExportError(f"{name}: has type {dtype}, expected an image of uint8 or uint16. Ingest it as one of these")
    if dtype == np.uint16:
        return Encoding("image", "uint16", "raw", "gzip", "mean")
    if wanted == "jpeg":
        return Encoding("image", "uint8", "jpeg", "raw", "mean", {"jpeg_quality": JPEG_QUALITY})
    return Encoding("image", "uint8", "png", "raw", "mean")


def pyramid(path: Path, encoding: Encoding, scales: Sequence[Scale], read: Read) -> Pyramid:
    """Return a volume to write, which `create` has created.

    Parameters
    ----------
    path : Path
        Its folder.
    encoding : Encoding
        Storage format.
    scales, read
        See `ffn.viewing.mips.Pyramid`.
    """
    return Pyramid(path.name, scales, partial(_open_level, path, encoding, scales), encoding.downsample, read)


def create(path: Path, encoding: Encoding, scales: Sequence[Scale]) -> None:
    """Write the metadata of a volume without voxels, unless they are there."""
    if (path / INFO).exists():
        return
    context, place = ts.Context(), {"driver": "memory", "path": "volume/"}
    for scale in scales:
        spec = _new_scale(encoding, scale) | {"kvstore": place}
        ts.open(spec, create=True, open=True, context=context).result()
    files = ts.KvStore.open(place, context=context).result()
    write_text(path / INFO, files.read(INFO).result().value.decode())


def open_scale(path: Path, mip: int) -> ts.TensorStore:
    """Open one mip for reading, with axes zyx in full-volume coordinates of that mip."""
    spec = {"driver": "neuroglancer_precomputed", "kvstore": _kvstore(path), "scale_index": mip}
    return _zyx_view(ts.open(spec, read=True).result())


def _open_level(path: Path, encoding: Encoding, scales: Sequence[Scale], mip: int) -> Level:
    spec = {"driver": "neuroglancer_precomputed", "kvstore": _kvstore(path), "scale_index": mip}
    store = ts.open(spec, open=True, context=shared_context()).result()
    box, folder = scales[mip].box, path / store.spec().to_json()["scale_metadata"]["key"]
    # The grid of shards starts at the offset of the volume, like that of chunks.
    shard_zyx = zyx((store.chunk_layout.write_chunk.shape or ())[2::-1])
    return Level(_zyx_view(store), shard_zyx, partial(_file, folder, box, _sharding(box, encoding)))


def _file(folder: Path, box: Box, sharding: dict[str, Any], shard: Box) -> Path:
    """Return the file of a shard."""
    corner = zyx((a - b) // n for a, b, n in zip(shard.start, box.start, CHUNK_ZYX, strict=True))
    code = _compressed_morton(corner, _chunk_grid(box)) >> sharding["preshift_bits"]
    number, digits = code % 2 ** sharding["shard_bits"], -(-sharding["shard_bits"] // 4)
    return folder / f"{number:0{digits}x}.shard"


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
    id_bits = sum((n - 1).bit_length() for n in _chunk_grid(box))
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": shard_bits,
        "minishard_bits": 0,
        "shard_bits": max(0, id_bits - shard_bits),
        "minishard_index_encoding": "gzip",
        "data_encoding": encoding.shards,
    }


def _chunk_grid(box: Box) -> ZYX:
    return divide_up(box.shape, CHUNK_ZYX)


def _compressed_morton(chunk_zyx: ZYX, grid_zyx: ZYX) -> int:
    """Id of a chunk: interleaved bits, x lowest. An axis contributes only the bits that its grid needs."""
    code, place = 0, 0
    for bit in range(max(grid_zyx).bit_length()):
        for axis in (2, 1, 0):
            if 2**bit < grid_zyx[axis]:
                code |= (chunk_zyx[axis] >> bit & 1) << place
                place += 1
    return code


def _zyx_view(store: ts.TensorStore) -> ts.TensorStore:
    """Return the same voxels with axes zyx in full-volume coordinates."""
    return store[..., 0].T


def _kvstore(path: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{path.resolve()}/"}
