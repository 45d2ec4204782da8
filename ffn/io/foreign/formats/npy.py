"""One NumPy array of shape (Z, Y, X), memory-mapped; the format has no voxel size and no offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.volume import Volume, require_inside

TITLE = "NumPy array (.npy)"


def recognises(spec: str) -> bool:
    """Whether `spec` is a .npy file."""
    return Path(spec).suffix.lower() == ".npy" and Path(spec).is_file()


def open_volume(spec: str) -> Volume:
    """Open the file."""
    return NpyVolume(spec)


class NpyVolume:
    """The array of a .npy file; see `ffn.io.volume.Volume` for the attributes.

    Raises
    ------
    VolumeError
        If the file is truncated, holds pickled objects, or is not one 3D array of numbers.
    """

    def __init__(self, spec: str) -> None:
        try:
            self._array = np.lib.format.open_memmap(spec, mode="r")  # unlike np.load, it never unpickles
        except (ValueError, OSError) as reason:
            raise VolumeError(f"{spec}: cannot be read ({reason}), expected one whole array. Save it again") from None
        if self._array.ndim != 3 or self._array.dtype.kind not in "buif":
            raise VolumeError(
                f"{spec}: has shape {self._array.shape} and type {self._array.dtype}, "
                "expected three axes z, y, x of numbers. Save one channel alone"
            )
        self.name = spec
        self.box = Box.from_shape(zyx(self._array.shape))
        self.dtype = self._array.dtype.newbyteorder("=")
        self.voxel_size_zyx_nm: VoxelSize | None = None
        self.provenance: dict = {}

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all).

        Raises
        ------
        VolumeError
            If `box` reaches outside the volume.
        """
        box = self.box if box is None else box
        require_inside(self, box)
        return np.array(self._array[box.slices()], self.dtype, order="C")

    def close(self) -> None:
        """Do nothing: the map is released with the last reference to it."""
