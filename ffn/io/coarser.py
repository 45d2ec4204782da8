"""Mips that a volume does not have: planned, and made of the finer one while they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize, divide_up, piece_shape, scale, zyx
from ffn.io.volume import Volume, voxel_size_of

READ_BYTES = 2**26  # of the finer mip at a time, unless its chunks are larger; our choice

Downsample = Literal["mean", "mode"]
Conversion = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Scale:
    """One mip: its box and voxel size."""

    box: Box
    voxel_size_zyx_nm: VoxelSize
    factors_zyx: ZYX = (1, 1, 1)


def next_scale(finer: Scale) -> Scale:
    """Plan the next mip.

    An axis is halved unless its voxels are already twice as long as the shortest side, so that anisotropic voxels
    become more isotropic. Voxels are counted from the origin of the full volume, so the first and the last of an axis
    may cover less than the others.
    """
    shortest = min(finer.voxel_size_zyx_nm)
    factors = zyx(2 if side < 2 * shortest else 1 for side in finer.voxel_size_zyx_nm)
    start = zyx(n // f for n, f in zip(finer.box.start, factors, strict=True))
    z, y, x = (side * f for side, f in zip(finer.voxel_size_zyx_nm, factors, strict=True))
    return Scale(Box(start, divide_up(finer.box.stop, factors)), (z, y, x), factors)


def further_scales(finest: Scale, number: int) -> list[Scale]:
    """Plan further mips, finest first.

    Examples
    --------
    >>> finest = Scale(Box((0, 0, 10), (100, 200, 211)), (40.0, 16.0, 16.0))
    >>> [(each.voxel_size_zyx_nm, str(each.box)) for each in further_scales(finest, 2)]
    [((40.0, 32.0, 32.0), '0:100,0:100,5:106'), ((80.0, 64.0, 64.0), '0:50,0:50,2:53')]
    """
    scales = [finest]
    for _ in range(number):
        scales.append(next_scale(scales[-1]))
    return scales[1:]


def downsample(voxels: np.ndarray, box: Box, factors_zyx: ZYX, method: Downsample) -> np.ndarray:
    """Return the voxels of the next mip that lie, in part at least, in a box.

    Examples
    --------
    >>> labels = np.array([[[5, 7, 7, 9, 9, 9]]], np.uint64)
    >>> downsample(labels, Box((0, 0, 1), (1, 1, 7)), (1, 1, 2), "mode").tolist()
    [[[5, 7, 9, 9]]]
    """
    import tensorstore as ts

    array = ts.array(np.ascontiguousarray(voxels))[ts.d[:].translate_to[box.start]]
    return ts.downsample(array, factors_zyx, method).read().result()


class Placed:
    """A volume at another place and with a voxel size; see `Volume` for the attributes."""

    def __init__(self, source: Volume, shift_zyx: ZYX, voxel_size_zyx_nm: VoxelSize) -> None:
        self._source, self._back = source, scale(shift_zyx, -1)
        self.name: str = source.name
        self.box: Box = source.box.shift(shift_zyx)
        self.dtype: np.dtype = source.dtype
        self.voxel_size_zyx_nm: VoxelSize | None = voxel_size_zyx_nm
        self.provenance: dict = source.provenance
        self.chunk_zyx: ZYX | None = getattr(source, "chunk_zyx", None)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        return self._source.read((box or self.box).shift(self._back))

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class Coarser:
    """The next mip of a volume, made block by block while it is read; see `Volume` for the attributes.

    Memory is a few times `READ_BYTES`, and the part of the finer mip that is decoded as a whole, for any box.
    """

    def __init__(
        self, finer: Volume, method: Downsample, convert: Conversion | None = None, dtype: np.dtype | None = None
    ) -> None:
        planned = next_scale(Scale(finer.box, voxel_size_of(finer)))
        self._finer, self._method, self._convert = finer, method, convert
        self._factors = planned.factors_zyx
        self.name: str = finer.name
        self.box: Box = planned.box
        self.dtype: np.dtype = dtype or finer.dtype
        self.voxel_size_zyx_nm: VoxelSize | None = planned.voxel_size_zyx_nm
        self.provenance: dict = finer.provenance
        self.chunk_zyx = self._chunk()

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        box = self.box if box is None else box
        out = np.empty(box.shape, self.dtype)
        for piece in box.blocks(self._piece(self.chunk_zyx or (1, 1, 1), box, self._finer.dtype)):
            around = self._in_finer(piece)
            read = self._finer.read(around)
            for part in piece.blocks(self._piece((1, 1, 1), piece, self.dtype)):
                inner = self._in_finer(part)
                voxels = read[inner.slices(around.start)]
                voxels = (self._convert(voxels) if self._convert else voxels).astype(self.dtype, copy=False)
                out[part.slices(box.start)] = downsample(voxels, inner, self._factors, self._method)
        return out

    def close(self) -> None:
        """Close the finer mip."""
        self._finer.close()

    def _in_finer(self, box: Box) -> Box:
        start, stop = (zyx(np.multiply(corner, self._factors)) for corner in (box.start, box.stop))
        return Box(start, stop).intersect(self._finer.box)

    def _chunk(self) -> ZYX | None:
        chunk: ZYX | None = getattr(self._finer, "chunk_zyx", None)
        if chunk is None:
            return None
        axes = zip(chunk, self._finer.box.shape, self._factors, self.box.shape, strict=True)
        return zyx(all_of_it if side >= length else max(1, side // f) for side, length, f, all_of_it in axes)

    def _piece(self, least: ZYX, box: Box, dtype: np.dtype) -> ZYX:
        return piece_shape(least, box.shape, READ_BYTES // (math.prod(self._factors) * dtype.itemsize))


def coarser(
    finest: Volume, number: int, method: Downsample, convert: Conversion | None = None, dtype: np.dtype | None = None
) -> Volume:
    """Return the mip that comes `number` after a volume, at least 1; each is made of the one before, see `Coarser`."""
    volume: Volume = Coarser(finest, method, convert, dtype)
    for _ in range(number - 1):
        volume = Coarser(volume, method)
    return volume
