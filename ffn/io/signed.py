"""Images of signed integers, such as the bytes of MRC, as unsigned ones."""

from __future__ import annotations

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.volume import Volume


class Unsigned:
    """An image of int8 or int16 as uint8 or uint16; see `Volume` for the attributes.

    Every grey level is raised by the same number, so no two of them become one.

    Parameters
    ----------
    source : Volume
        Image of signed integers.

    Attributes
    ----------
    added : int
        To every voxel: 128 or 32768, so that the lowest number of the type becomes 0.
    """

    def __init__(self, source: Volume) -> None:
        self._source = source
        self.added = 2 ** (8 * source.dtype.itemsize - 1)
        self.name: str = source.name
        self.box: Box = source.box
        self.dtype: np.dtype = np.dtype(f"u{source.dtype.itemsize}")
        self.voxel_size_zyx_nm: VoxelSize | None = source.voxel_size_zyx_nm
        self.provenance: dict = source.provenance
        self.chunk_zyx: ZYX | None = getattr(source, "chunk_zyx", None)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        return self._source.read(box).view(self.dtype) ^ self.dtype.type(self.added)  # the sign bit has this weight

    def close(self) -> None:
        """Close the source."""
        self._source.close()
