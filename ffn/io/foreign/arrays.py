"""Volumes in one array, in memory or mapped to a file."""

from __future__ import annotations

import numpy as np

from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.foreign.axes import SpatialAxes
from ffn.io.volume import number_type, require_inside


class ArrayVolume:
    """An array as a volume; see `ffn.io.volume.Volume` for the attributes.

    Parameters
    ----------
    name : str
        Path for messages.
    array : ndarray
        Voxels; may be a memory map.
    voxel_size_zyx_nm : tuple of float, optional
        None where the source declares none.
    start_zyx : tuple of int
        First voxel in full-volume coordinates.
    order : str
        Order of the axes: ``zyx`` or ``xyz``.

    Raises
    ------
    VolumeError
        If it is not one 3D array of numbers.
    """

    def __init__(
        self,
        name: str,
        array: np.ndarray,
        voxel_size_zyx_nm: VoxelSize | None = None,
        start_zyx: ZYX = (0, 0, 0),
        order: str = "zyx",
    ) -> None:
        self._array = array
        self._axes = SpatialAxes.find(name, array.shape, order=order)
        self.name = name
        self.box = Box.from_shape(self._axes.of(array.shape), start_zyx)
        self.dtype = number_type(name, array.dtype)
        self.voxel_size_zyx_nm = voxel_size_zyx_nm
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
        return np.array(self._axes.take(self._array, box.slices(self.box.start)), self.dtype, order="C")

    def close(self) -> None:
        """Do nothing: a map is released with the last reference to it."""
