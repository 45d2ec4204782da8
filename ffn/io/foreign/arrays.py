"""Volumes in one array, in memory or mapped to a file: NumPy, MRC, NIfTI."""

from __future__ import annotations

import gzip
import math
import warnings
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize
from ffn.io.atomic import unreadable
from ffn.io.foreign.attributes import to_nm
from ffn.io.volume import SpatialAxes, Volume, number_type

NM_PER_ANGSTROM = 0.1
IMOD_STAMP, IMOD_SIGNED_BYTES = 1146047817, 1  # of imod's header, in bytes 152 to 159
IMOD_START = 152 - 112  # within `extra2`


class ArrayVolume(Volume):
    """An array, which may be a memory map, as a volume; `order` is that of its axes, ``zyx`` or ``xyz``."""

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
        box = Box.from_shape(self._axes.of(array.shape), start_zyx)
        super().__init__(name, box, number_type(name, array.dtype), voxel_size_zyx_nm)

    def _read(self, box: Box) -> np.ndarray:
        return np.array(self._axes.take(self._array, box.slices(self.box.start)), self.dtype, order="C")


def open_numpy(spec: str) -> ArrayVolume:
    """Open one NumPy array of shape (Z, Y, X); the format has no voxel size and no offset.

    It is memory-mapped, or read into memory where it is the only one with three axes in an archive.
    """
    with unreadable(spec):
        if not spec.lower().endswith(".npz"):
            return ArrayVolume(spec, np.lib.format.open_memmap(spec, mode="r"))  # unlike np.load, it never unpickles
        with np.load(spec) as archive:
            arrays = {name: archive[name] for name in archive.files}
            found = [array for array in arrays.values() if array.ndim >= 3]
            if len(found) != 1:
                listed = ", ".join(f"{name} of shape {array.shape}" for name, array in arrays.items()) or "nothing"
                raise VolumeError(f"{spec}: holds {listed}, expected one volume. Save one with numpy.save, as .npy")
            return ArrayVolume(spec, found[0])


def open_mrc(spec: str) -> ArrayVolume:
    """Open an MRC file of electron tomography, memory-mapped, with the place in `nxstart` … of its header."""
    import mrcfile

    with unreadable(spec), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        file = mrcfile.mmap(spec, permissive=True)  # many writers leave out the stamp of the byte order
        if file.data is None:
            raise ValueError("; ".join(str(warning.message) for warning in found))
        size = _mrc_voxel_size(file.voxel_size)  # warns where the header has no cell
    header = file.header
    order = tuple(int(header[name]) for name in ("mapc", "mapr", "maps"))
    if order not in ((1, 2, 3), (0, 0, 0)):
        raise VolumeError(f"{spec}: has axes {order} from fast to slow, expected x, y, z (1, 2, 3). Convert it")
    start = (int(header.nzstart), int(header.nystart), int(header.nxstart))
    return ArrayVolume(spec, _mrc_voxels(file.data, header), size, start)


def open_nifti(spec: str) -> ArrayVolume:
    """Open a NIfTI file, with axes x, y, z; a compressed one is decompressed into memory.

    Its orientation and origin refer to a brain, not to a larger volume: voxels stay as they are stored, from 0, 0, 0.
    """
    import nibabel

    with unreadable(spec):
        image: Any = nibabel.load(spec)
        array = np.asanyarray(image.dataobj)
        unit, _ = image.header.get_xyzt_units()
        if spec.lower().endswith(".gz"):  # to the end, where its checksum is; nibabel stops at the last voxel
            with gzip.open(spec) as file:
                while file.read(2**20):
                    pass
    sides = (*image.header.get_zooms(), 0, 0)[:3]  # of a 2D file only two, which `ArrayVolume` refuses
    x, y, z = (float(str(side)) for side in sides)
    return ArrayVolume(spec, array, to_nm((z, y, x), (unit,) * 3), order="xyz")


def _mrc_voxels(data: np.ndarray, header: Any) -> np.ndarray:
    """Return the voxels; bytes are signed, unless the header is IMOD's and does not say so."""
    stamp, flags = np.frombuffer(header.extra2.tobytes()[IMOD_START:], header.nx.dtype, 2)
    is_unsigned = stamp == IMOD_STAMP and not flags & IMOD_SIGNED_BYTES
    return data.view(np.uint8) if data.dtype == np.int8 and is_unsigned else data


def _mrc_voxel_size(angstrom: Any) -> VoxelSize | None:
    """Voxel size in nm; None for a header without a cell and for 1 Å, which stand for no calibration."""
    z, y, x = (float(str(angstrom[axis])) for axis in "zyx")
    if not all(0 < side < math.inf for side in (z, y, x)) or z == y == x == 1:
        return None
    return z * NM_PER_ANGSTROM, y * NM_PER_ANGSTROM, x * NM_PER_ANGSTROM
