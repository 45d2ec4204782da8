"""Write sharded Neuroglancer precomputed volumes with mips, several shards in parallel.

Source of the format: Neuroglancer, ``src/datasource/precomputed/{volume,sharded}.md``. Axes are zyx here, xyz there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, divide_up, zyx
from ffn.io.volume import Read
from ffn.viewing.mips import CACHE_BYTES, CHUNK_ZYX, SHARD_BYTES, Downsample, Level, Scale, Visit, write_mips

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
        Encoding of a chunk: ``jpeg``, ``png`` or ``compressed_segmentation``.
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
        ``jpeg`` or ``png``. Images of 16 bits are always PNG.
    name : str
        Name of the volume, for messages.

    Raises
    ------
    ExportError
        If Neuroglancer has no compressed encoding for `dtype`.
    """
    if dtype not in (np.uint8, np.uint16):
        raise ExportError(f"{name}: has type {dtype}, expected an image of uint8 or uint16. Ingest it as one of these")
    if wanted == "jpeg" and dtype == np.uint8:
        return Encoding("image", "uint8", "jpeg", "raw", "mean", {"jpeg_quality": JPEG_QUALITY})
    return Encoding("image", dtype.name, "png", "raw", "mean")


def write_volume(
    path: Path, encoding: Encoding, scales: list[Scale], read: Read, visit: Visit | None = None, threads: int = 1
) -> None:
    """Write a volume and all its mips, or complete what an interrupted call wrote.

    A shard is a file that appears complete, so existing shards are kept. Memory is about four times `SHARD_BYTES` for
    each shard in progress, whatever the size of the volume. The same input gives the same bytes.

    Parameters
    ----------
    path : Path
        Folder to create, or one left by an interrupted call with the same arguments.
    encoding : Encoding
        Storage format.
    scales : list of Scale
        Mips, from `plan_scales`.
    read : callable
        Returns the voxels of a box of mip 0, in the type of the encoding. Only one thread calls it at a time, because
        not every reader is thread-safe.
    visit : callable, optional
        Called with the box and the voxels of every shard of mip 0, written or kept. Several threads call it at once.
    threads : int
        Number of shards written in parallel.
    """
    open_level = partial(_open_level, path, encoding)
    write_mips(path.name, scales, open_level, encoding.downsample, read, visit, threads)


def open_scale(path: Path, mip: int) -> ts.TensorStore:
    """Open one mip for reading, with axes zyx in full-volume coordinates of that mip."""
    spec = {"driver": "neuroglancer_precomputed", "kvstore": _kvstore(path), "scale_index": mip}
    return _zyx_view(ts.open(spec, read=True).result())


def _open_level(path: Path, encoding: Encoding, scale: Scale) -> Level:
    """Create one mip, or open what an interrupted call left of it."""
    store = _create_scale(path, encoding, scale)
    folder = path / store.spec().to_json()["scale_metadata"]["key"]
    # The grid of shards starts at the offset of the volume, like that of chunks.
    shard_zyx = zyx((store.chunk_layout.write_chunk.shape or ())[2::-1])
    return Level(_zyx_view(store), shard_zyx, partial(_file, folder, scale.box, _sharding(scale.box, encoding)))


def _file(folder: Path, box: Box, sharding: dict[str, Any], shard: Box) -> Path:
    """Return the file of a shard."""
    corner = zyx((a - b) // n for a, b, n in zip(shard.start, box.start, CHUNK_ZYX, strict=True))
    code = _compressed_morton(corner, _chunk_grid(box)) >> sharding["preshift_bits"]
    number, digits = code % 2 ** sharding["shard_bits"], -(-sharding["shard_bits"] // 4)
    return folder / f"{number:0{digits}x}.shard"


def _create_scale(path: Path, encoding: Encoding, scale: Scale) -> ts.TensorStore:
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": _kvstore(path),
        "context": {"cache_pool": {"total_bytes_limit": CACHE_BYTES}},
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
    return ts.open(spec, create=True, open=True).result()


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
    return {"driver": "file", "path": f"{path}/"}
