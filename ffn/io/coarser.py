"""Volumes that are made of another one while they are read: further mips; shifted, equalised or levelled images."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, divide_up, piece_shape, subtract, zyx
from ffn.io.volume import Derived, Volume, voxel_size_of

READ_BYTES = 2**26  # of the finer mip at a time, unless its chunks are larger; our choice
CLIP_LIMIT = 0.01  # of CLAHE; scikit-image's default
# Of the spread; FIB-25: 0.01 at most, SNEMI3D (z < 64): 0.30 with these samples, 0.33 to 0.43 with others.
JUMPS = 0.2
SAMPLED = 16  # pairs of neighbouring sections, at most; our choice
LEAST = 64 * 64  # voxels of a section, or it says too little about the levels; our choice
WINDOW = 512  # side of what is sampled of a section, in its middle, voxels; our choice
MOST_GAIN = 4.0  # of contrast; our choice, so that a blank section does not become noise

Downsample = Literal["mean", "mode"]


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


class Placed(Derived):
    """A volume whose first voxel is at another place, and with a voxel size."""

    def __init__(self, source: Volume, start_zyx: ZYX, voxel_size_zyx_nm: VoxelSize) -> None:
        super().__init__(source)
        self.box, self.voxel_size_zyx_nm = Box.from_shape(source.box.shape, start_zyx), voxel_size_zyx_nm
        self.mips = [voxel_size_zyx_nm]
        self.to_source_zyx = subtract(source.box.start, start_zyx)

    def _read(self, box: Box) -> np.ndarray:
        return self.source.read(box.shift(self.to_source_zyx))


class Coarser(Derived):
    """The next mip of a volume, made block by block while it is read.

    Memory is a few times `READ_BYTES`, and the part of the finer mip that is decoded as a whole, for any box.
    """

    def __init__(self, finer: Volume, method: Downsample) -> None:
        super().__init__(finer)
        planned = next_scale(Scale(finer.box, voxel_size_of(finer)))
        self.box, self.voxel_size_zyx_nm, self._factors = planned.box, planned.voxel_size_zyx_nm, planned.factors_zyx
        self._method: Downsample = method
        if finer.chunk_zyx:
            axes = zip(finer.chunk_zyx, finer.box.shape, self._factors, self.box.shape, strict=True)
            self.chunk_zyx = zyx(whole if side >= length else max(1, side // f) for side, length, f, whole in axes)

    def _read(self, box: Box) -> np.ndarray:
        out = np.empty(box.shape, self.dtype)
        most = READ_BYTES // (math.prod(self._factors) * self.dtype.itemsize)
        for piece in box.blocks(piece_shape(self.chunk_zyx or (1, 1, 1), box.shape, most)):
            start, stop = (zyx(np.multiply(corner, self._factors)) for corner in (piece.start, piece.stop))
            finer = Box(start, stop).intersect(self.source.box)
            out[piece.slices(box.start)] = downsample(self.source.read(finer), finer, self._factors, self._method)
        return out


class BySection(Derived):
    """An image of which every section is changed for itself.

    Sections are read as far as they lie in `box`, by default whole, so that blocks do not change a voxel.
    """

    def __init__(self, source: Volume, change: Callable[[np.ndarray], np.ndarray], box: Box | None = None) -> None:
        super().__init__(source)
        self._change = change
        self.box = box or source.box
        self.chunk_zyx = ((source.chunk_zyx or (1, 1, 1))[0], *self.box.shape[1:])

    def _read(self, box: Box) -> np.ndarray:
        whole = Box((box.start[0], *self.box.start[1:]), (box.stop[0], *self.box.stop[1:]))
        return np.stack([self._change(section) for section in self.source.read(whole)])[box.slices(whole.start)]


def clahe_of(image: Volume) -> int | None:
    """Return the tile of CLAHE of an image of `ffn ingest`, or of the image that it was made of."""
    config, inputs = (image.provenance.get(key, {}) for key in ("config", "inputs"))
    tile = config.get("clahe_tile") or inputs.get("clahe_tile")
    return tile and int(tile)


def equalized(source: Volume, tile: int) -> Volume:
    """Return a uint8 image with contrast-limited adaptive histogram equalisation (CLAHE) of every section.

    `tile` is the side of a tile along y and x, voxels. Source: Zuiderveld 1994, Graphics Gems IV.
    """
    if source.dtype != np.uint8:
        raise VolumeError(f"{source.name}: has type {source.dtype}, but clahe_tile needs uint8. Convert the image")
    return BySection(source, partial(_equalised, tile))


def _equalised(tile: int, section: np.ndarray) -> np.ndarray:
    from skimage.exposure import equalize_adapthist

    if section.min() == section.max():  # becomes white otherwise
        return section
    return (255 * equalize_adapthist(section, tile, CLIP_LIMIT)).round().astype(np.uint8)


def coarser(finest: Volume, number: int, method: Downsample) -> Volume:
    """Return the mip that comes `number` after a volume; each is made of the one before, see `Coarser`."""
    for _ in range(number):
        finest = Coarser(finest, method)
    return finest


class Levels(NamedTuple):
    """Grey levels of an image's typical section, and the typical jump from one to the next, in parts of the spread."""

    median: float
    spread: float  # interquartile range
    jump: float


def levels_of(image: Volume, box: Box) -> Levels | None:
    """Return the grey levels of a sample of sections in a box, always the same one; None if all are blank or small."""
    (first, *_), (last, *_) = box.start, box.stop
    window = box.middle((box.shape[0], WINDOW, WINDOW)).intersect(box)
    found, jumps = [], []
    if window.shape[1] * window.shape[2] < LEAST:
        return None
    for z in np.unique(np.linspace(first, max(first, last - 2), SAMPLED).astype(int)).tolist():
        pair = image.read(Box((z, *window.start[1:]), (min(z + 2, last), *window.stop[1:])))
        quartiles = [each for section in pair if (each := _quartiles(section)) is not None]
        found += quartiles
        if len(quartiles) == 2:
            jumps.append(abs(quartiles[1][1] - quartiles[0][1]))
    if not found:
        return None
    lower, median, upper = np.median(found, axis=0).tolist()
    return Levels(median, upper - lower, float(np.median(jumps)) / (upper - lower) if jumps else 0.0)


def levelled(image: Volume, levels: Levels, box: Box) -> Volume:
    """Return a box of an image in which all sections have the same median and interquartile range.

    0, outside the tissue, stays.
    """
    return BySection(image, partial(_levelled, levels), box)


def _levelled(levels: Levels, section: np.ndarray) -> np.ndarray:
    quartiles = _quartiles(section)
    if quartiles is None:
        return section
    lower, median, upper = quartiles
    gain = np.clip(levels.spread / (upper - lower), 1 / MOST_GAIN, MOST_GAIN)
    most = np.iinfo(section.dtype).max
    table = np.clip(np.rint((np.arange(most + 1) - median) * gain + levels.median), 1, most)
    table[0] = 0
    return table.astype(section.dtype)[section]


def _quartiles(section: np.ndarray) -> tuple[float, float, float] | None:
    """Return the quartiles of what is not 0, None without contrast. Blood vessels and folds hardly move them."""
    tissue = section[section > 0]
    if not tissue.size:
        return None
    lower, median, upper = np.percentile(tissue, (25, 50, 75)).tolist()
    return (lower, median, upper) if upper > lower else None
