"""Images whose grey levels are changed while they are read; see `ffn.io.volume.Volume` for the attributes."""

from __future__ import annotations

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.volume import Volume

CLIP_LIMIT = 0.01  # scikit-image's default


class _Changed:
    """A volume in the place of its source."""

    def __init__(self, source: Volume, dtype: np.dtype) -> None:
        self._source = source
        self.name: str = source.name
        self.box: Box = source.box
        self.dtype = dtype
        self.voxel_size_zyx_nm: VoxelSize | None = source.voxel_size_zyx_nm
        self.provenance: dict = source.provenance
        self.chunk_zyx: ZYX | None = getattr(source, "chunk_zyx", None)

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class Unsigned(_Changed):
    """An image of int8 or int16, such as the bytes of MRC, as uint8 or uint16: all grey levels rise by `added`."""

    def __init__(self, source: Volume) -> None:
        super().__init__(source, np.dtype(f"u{source.dtype.itemsize}"))
        self.added = 2 ** (8 * source.dtype.itemsize - 1)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        return self._source.read(box).view(self.dtype) ^ self.dtype.type(self.added)  # the sign bit has this weight


class Equalized(_Changed):
    """A uint8 image with contrast-limited adaptive histogram equalisation (CLAHE) of every section.

    Sections are read whole, so neither blocks nor boxes change a voxel.

    Parameters
    ----------
    source : Volume
        Image, uint8.
    tile : int
        Side of a tile along y and x, voxels.

    Notes
    -----
    Source: Zuiderveld 1994, Graphics Gems IV.
    """

    def __init__(self, source: Volume, tile: int) -> None:
        if source.dtype != np.uint8:
            raise VolumeError(f"{source.name}: has type {source.dtype}, but clahe_tile needs uint8. Convert the image")
        super().__init__(source, source.dtype)
        self._tile = tile
        _, height, width = source.box.shape
        self.chunk_zyx = ((self.chunk_zyx or (1, 1, 1))[0], height, width)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all), equalised."""
        box = self.box if box is None else box
        whole = Box((box.start[0], *self.box.start[1:]), (box.stop[0], *self.box.stop[1:]))
        sections = np.stack([self._equalised(section) for section in self._source.read(whole)])
        return sections[box.slices(whole.start)]

    def _equalised(self, section: np.ndarray) -> np.ndarray:
        from skimage.exposure import equalize_adapthist

        if section.min() == section.max():  # becomes white otherwise
            return section
        return (255 * equalize_adapthist(section, self._tile, CLIP_LIMIT)).round().astype(np.uint8)
