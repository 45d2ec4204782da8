"""MRC of electron tomography, memory-mapped; IMOD's unsigned bytes and the place in `nxstart` … are understood."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import VoxelSize
from ffn.io.volume import Volume

TITLE = "MRC (.mrc, .rec, .map)"
SUFFIXES = (".mrc", ".rec", ".map")
NM_PER_ANGSTROM = 0.1
IMOD_STAMP, IMOD_SIGNED_BYTES = 1146047817, 1  # of imod's header, in bytes 152 to 159
IMOD_START = 152 - 112  # within `extra2`


def recognises(spec: str) -> bool:
    """Whether `spec` is an MRC file."""
    return Path(spec).suffix.lower() in SUFFIXES and Path(spec).is_file()


def open_volume(spec: str) -> Volume:
    """Open the file.

    Raises
    ------
    VolumeError
        If it is truncated, has its axes in another order than x, y, z, or is not one 3D array of numbers.
    """
    import mrcfile

    from ffn.io.foreign.arrays import ArrayVolume

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            file = mrcfile.mmap(spec, permissive=True)  # many writers leave out the stamp of the byte order
        except (ValueError, OSError) as reason:
            raise _unreadable(spec, str(reason)) from None
        size = None if file.data is None else _voxel_size(file.voxel_size)  # warns where the header has no cell
    if file.data is None:
        raise _unreadable(spec, "; ".join(str(warning.message) for warning in found))
    header = file.header
    order = tuple(int(header[name]) for name in ("mapc", "mapr", "maps"))
    if order not in ((1, 2, 3), (0, 0, 0)):
        raise VolumeError(f"{spec}: has axes {order} from fast to slow, expected x, y, z (1, 2, 3). Convert it")
    start = (int(header.nzstart), int(header.nystart), int(header.nxstart))
    return ArrayVolume(spec, _voxels(file.data, header), size, start)


def _voxels(data: np.ndarray, header: Any) -> np.ndarray:
    """Return the voxels; bytes are signed, unless the header is IMOD's and does not say so."""
    stamp, flags = np.frombuffer(header.extra2.tobytes()[IMOD_START:], header.nx.dtype, 2)
    is_unsigned = stamp == IMOD_STAMP and not flags & IMOD_SIGNED_BYTES
    return data.view(np.uint8) if data.dtype == np.int8 and is_unsigned else data


def _voxel_size(angstrom: Any) -> VoxelSize | None:
    """Voxel size in nm; None for a header without a cell and for 1 Å, which stand for no calibration."""
    z, y, x = (float(str(angstrom[axis])) for axis in "zyx")
    if not all(0 < side < math.inf for side in (z, y, x)) or z == y == x == 1:
        return None
    return z * NM_PER_ANGSTROM, y * NM_PER_ANGSTROM, x * NM_PER_ANGSTROM


def _unreadable(spec: str, reason: str) -> VolumeError:
    return VolumeError(f"{spec}: cannot be read ({' '.join(reason.split())}), expected a whole MRC file. Restore it")
