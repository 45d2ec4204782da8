"""Contrast-limited adaptive histogram equalisation (CLAHE) of an image, section by section, while it is read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.volume import Volume

NUM_LEVELS = 256

CLIP = 0.01  # as in scikit-image


class Equalized:
    """A uint8 image in which every section is equalised: each tile by its own histogram, smoothly from tile to tile.

    Tiles are counted from the first voxel of the source, whatever part of it is read. So neither blocks nor boxes
    change a voxel. The last tile of an axis takes what is left, half a tile to one and a half.

    Parameters
    ----------
    source : Volume
        Image, uint8.
    tile : int
        Side of a tile along y and x, voxels.
    clip : float
        Share of a tile's voxels that one grey level may have; what exceeds it is given to all levels alike.

    Raises
    ------
    VolumeError
        If the source has another type.

    Notes
    -----
    Source: Zuiderveld 1994, Graphics Gems IV. `skimage.exposure.equalize_adapthist` counts tiles from the corner of
    what it is given and stretches the result to its extremes, so its voxels would depend on the block.
    """

    def __init__(self, source: Volume, tile: int, clip: float = CLIP) -> None:
        if source.dtype != np.uint8:
            raise VolumeError(
                f"{source.name}: has type {source.dtype}, but CLAHE is for uint8. Convert the image, or leave "
                "clahe_tile out"
            )
        self._source = source
        self._clip = clip
        self._rows, self._columns = (_Tiles(source.box.start[k], source.box.stop[k], tile) for k in (1, 2))
        self.name: str = source.name
        self.box: Box = source.box
        self.dtype: np.dtype = source.dtype
        self.voxel_size_zyx_nm: VoxelSize | None = source.voxel_size_zyx_nm
        self.provenance: dict[str, Any] = source.provenance
        self.chunk_zyx: ZYX | None = getattr(source, "chunk_zyx", None)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all), equalised."""
        box = self.box if box is None else box
        rows, columns = self._rows.around(box.start[1], box.stop[1]), self._columns.around(box.start[2], box.stop[2])
        (y0, y1), (x0, x1) = (rows[0][0], rows[-1][1]), (columns[0][0], columns[-1][1])
        outer = Box((box.start[0], y0, x0), (box.stop[0], y1, x1))
        sections, inside = self._source.read(outer), box.slices(outer.start)[1:]
        tiles = [[(slice(a - y0, b - y0), slice(c - x0, d - x0)) for c, d in columns] for a, b in rows]
        weights = self._rows.weights(box.start[1], box.stop[1]), self._columns.weights(box.start[2], box.stop[2])
        out = np.empty(box.shape, np.uint8)
        for z, section in enumerate(sections):
            curves = np.array([[equalising_curve(section[place], self._clip) for place in row] for row in tiles])
            out[z] = _interpolated(section[inside], curves, *weights)
        return out

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class _Tiles(NamedTuple):
    """Tiles along one axis of a volume."""

    start: int
    stop: int
    side: int

    @property
    def number(self) -> int:
        return max(1, round((self.stop - self.start) / self.side))

    def around(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of the tiles that decide the voxels from `start` to `stop`."""
        lower, upper, _ = self._neighbours(start, stop)
        first = [self.start + n * self.side for n in range(lower[0], upper[-1] + 1)]
        last = self.stop if upper[-1] == self.number - 1 else first[-1] + self.side
        return list(zip(first, [*first[1:], last], strict=True))

    def weights(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each voxel the tiles whose middles are before and behind it, counted from the first of `around`.

        The last array is the weight of those behind.
        """
        lower, upper, weight = self._neighbours(start, stop)
        return lower - lower[0], upper - lower[0], weight

    def _neighbours(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        place = (np.arange(start, stop) - self.start + 0.5) / self.side - 0.5
        lower = np.floor(place).astype(int)
        last = self.number - 1
        return lower.clip(0, last), (lower + 1).clip(0, last), place - lower


def equalising_curve(voxels: np.ndarray, clip: float) -> np.ndarray:
    """Return the grey level that takes the place of each one, so that all become about equally frequent.

    Parameters
    ----------
    voxels : uint8 ndarray
        Of one tile.
    clip : float
        See `Equalized`.

    Returns
    -------
    float64 ndarray of shape (256,)
        Ascending, at most 255.
    """
    counts = np.bincount(voxels.ravel(), minlength=NUM_LEVELS)
    kept = np.minimum(counts, max(1.0, clip * voxels.size))
    shares = (kept + (counts.sum() - kept.sum()) / NUM_LEVELS) / voxels.size
    return np.minimum(np.cumsum(shares), 1) * (NUM_LEVELS - 1)


def _interpolated(
    voxels: np.ndarray,
    curves: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    columns: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """Apply the curves of the four nearest tiles to each voxel of a section, and mix what they give."""
    mixed = np.zeros(voxels.shape)
    for row, of_row in ((rows[0], 1 - rows[2]), (rows[1], rows[2])):
        for column, of_column in ((columns[0], 1 - columns[2]), (columns[1], columns[2])):
            mixed += of_row[:, None] * of_column * curves[row[:, None], column, voxels]
    return mixed.round().astype(np.uint8)
