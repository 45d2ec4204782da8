"""The layers of an export: sharded Neuroglancer precomputed volumes, each mip made shard by shard from the finer one.

Source of the format: Neuroglancer, ``src/datasource/precomputed/{volume,sharded}.md``. Axes are zyx here, xyz there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, Grid, VoxelSize, cut, divide_up, zyx
from ffn.io.atomic import write_text
from ffn.io.coarser import Downsample, Scale, next_scale
from ffn.io.volume import Read, Volume, require_labels, require_same_voxel_size, voxel_size_of
from ffn.viewing.config import ExportConfig

CHUNK_ZYX: ZYX = (64, 64, 64)
SHARD_BYTES = 2**26  # decoded; a shard is one transaction, which needs about four times this memory
PIECE_ZYX: ZYX = (128, 128, 128)  # downsampled at a time, from up to 256³ voxels
CACHE = {"total_bytes_limit": 2**26}  # with an odd offset, neighbouring pieces of a mip share source chunks
CONTEXT = ts.Context({"cache_pool": CACHE, "file_io_locking": {"mode": "none"}})  # files are replaced whole
INFO = "info"  # file with the metadata
JPEG_QUALITY = 90
IMAGE = "image"  # the layer that has no labels
CONTRAST_PERCENTILES = (0.5, 99.5)
CONTRAST_SHAPE_ZYX = (128, 128, 128)  # part of an image that the contrast is measured on


def plan_scales(box: Box, voxel_size_zyx_nm: VoxelSize) -> list[Scale]:
    """Plan the mips of a volume, down to a mip that fits into one chunk; see `ffn.io.coarser.next_scale`.

    >>> [s.voxel_size_zyx_nm for s in plan_scales(Box((0, 0, 0), (100, 200, 200)), (40.0, 16.0, 16.0))]
    [(40.0, 16.0, 16.0), (40.0, 32.0, 32.0), (80.0, 64.0, 64.0)]
    """
    scales = [Scale(box, voxel_size_zyx_nm)]
    while any(n > chunk for n, chunk in zip(scales[-1].box.shape, CHUNK_ZYX, strict=True)):
        scales.append(next_scale(scales[-1]))
    return scales


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


@dataclass(frozen=True)
class Layer:
    """A volume of an export with all its mips. The same input gives the same bytes."""

    folder: Path
    encoding: Encoding
    scales: Sequence[Scale]  # the finest first
    read: Read  # voxels of the finest mip, in the type that is stored; several threads may call it

    @property
    def name(self) -> str:
        """Name of the layer and of its folder."""
        return self.folder.name

    @property
    def box(self) -> Box:
        """What is exported, full-volume voxels."""
        return self.scales[0].box

    @property
    def voxel_size_zyx_nm(self) -> VoxelSize:
        """Voxel size of the finest mip."""
        return self.scales[0].voxel_size_zyx_nm

    @property
    def is_labels(self) -> bool:
        """Whether it has segments."""
        return self.encoding.kind == "segmentation"

    def create(self) -> None:
        """Write ``info``, without voxels, unless it is there."""
        if (self.folder / INFO).exists():
            return
        context, memory = ts.Context(), {"driver": "memory", "path": "volume/"}
        for scale in self.scales:
            spec = _new_scale(self.encoding, scale) | {"kvstore": memory}
            ts.open(spec, create=True, open=True, context=context).result()
        files = ts.KvStore.open(memory, context=context).result()
        write_text(self.folder / INFO, files.read(INFO).result().value.decode())

    def shards(self, mip: int) -> Grid:
        """Return the shards of a mip, which TensorStore writes at once."""
        return cut(self.scales[mip].box, zyx(self._open(mip).chunk_layout.write_chunk.shape or ()))

    def copy_shard(self, shard: Box) -> np.ndarray:
        """Write one shard of mip 0, and return its voxels."""
        voxels = self.read(shard)
        with ts.Transaction() as transaction:  # so that the file appears complete
            self._open(0).with_transaction(transaction)[shard.slices()] = voxels
        return voxels

    def downsample_shard(self, mip: int, shard: Box) -> None:
        """Write one shard of a further mip, piece by piece from the finer one."""
        finer = ts.downsample(self._open(mip - 1), self.scales[mip].factors_zyx, self.encoding.downsample)
        with ts.Transaction() as transaction:
            target = self._open(mip).with_transaction(transaction)
            for piece in shard.blocks(PIECE_ZYX):
                target[piece.slices()] = finer[piece.slices()].read().result()

    def _open(self, mip: int) -> ts.TensorStore:
        return open_scale(self.folder, mip, CONTEXT)


def plan_layers(folder: Path, volumes: Mapping[str, Volume], config: ExportConfig, box: Box | None) -> dict[str, Layer]:
    """Check all volumes before anything is written, and return the layer of each, of its part in `box` (None: all)."""
    if not volumes:
        raise ExportError("export: no volume is given, expected --image, --segmentation or --truth")
    known = [volume for volume in volumes.values() if volume.voxel_size_zyx_nm is not None]
    if not known:
        names = ", ".join(volume.name for volume in volumes.values())
        raise ExportError(f"{names}: no voxel size found, one is needed. Ingest with --voxel-size Z Y X")
    layers: dict[str, Layer] = {}
    for name, volume in volumes.items():
        require_same_voxel_size(volume, known[0])
        inside = volume.box if box is None else volume.box.intersect(box)
        if inside.is_empty:
            covers = f"covers {volume.box}, expected an overlap with --box {box}"
            raise ExportError(f"{volume.name}: {covers}. Choose another box")
        if name != IMAGE:
            require_labels(volume)
        encoding = image_encoding(volume.dtype, config.image_encoding, volume.name) if name == IMAGE else LABELS
        scales = plan_scales(inside, voxel_size_of(known[0]))
        layers[name] = Layer(folder / name, encoding, scales, _reader(volume, encoding.dtype))
    return layers


def _reader(volume: Volume, dtype: str) -> Read:
    """Return a reader that several threads may call: not every format has one."""
    reading = threading.Lock()

    def read(box: Box) -> np.ndarray:
        with reading:
            return volume.read(box).astype(dtype, copy=False)

    return read


def contrast(read: Read, box: Box) -> tuple[float, float]:
    """Return the grey levels of an image to show as black and as white."""
    low, high = np.percentile(read(box.middle(CONTRAST_SHAPE_ZYX).intersect(box)), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))


def open_scale(path: Path, mip: int, context: ts.Context | None = None) -> ts.TensorStore:
    """Open one mip, with axes zyx in full-volume coordinates of that mip."""
    kvstore = {"driver": "file", "path": f"{path.resolve()}/"}
    spec = {"driver": "neuroglancer_precomputed", "kvstore": kvstore, "scale_index": mip}
    return ts.open(spec, open=True, context=context).result()[..., 0].T


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
