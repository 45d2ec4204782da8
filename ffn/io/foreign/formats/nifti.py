"""NIfTI, with axes x, y, z; a compressed file is decompressed into memory.

Its orientation and origin refer to a brain, not to a larger volume: voxels stay as they are stored, from 0, 0, 0.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import VolumeError
from ffn.io.volume import Volume

TITLE = "NIfTI (.nii, .nii.gz)"
BLOCK_BYTES = 2**24


def recognises(spec: str) -> bool:
    """Whether `spec` is a NIfTI file."""
    return spec.lower().endswith((".nii", ".nii.gz")) and Path(spec).is_file()


def open_volume(spec: str) -> Volume:
    """Open the file.

    Raises
    ------
    VolumeError
        If it is damaged, or is not one 3D array of numbers.
    """
    import nibabel

    from ffn.io.foreign.arrays import ArrayVolume
    from ffn.io.foreign.units import to_nm

    try:
        image: Any = nibabel.load(spec)
        array = np.asanyarray(image.dataobj)
        unit, _ = image.header.get_xyzt_units()
        _check_gzip(spec)
    except _damage(nibabel) as reason:
        found = " ".join(str(reason).split())
        raise VolumeError(f"{spec}: cannot be read ({found}), expected a whole NIfTI file. Restore it") from None
    sides = (*image.header.get_zooms(), 0, 0)[:3]  # of a 2D file only two, which `ArrayVolume` refuses
    x, y, z = (float(str(side)) for side in sides)
    return ArrayVolume(spec, array, to_nm((z, y, x), (unit,) * 3), order="xyz")


def _damage(nibabel: Any) -> tuple[type[Exception], ...]:
    """Return what a damaged file raises; the errors of nibabel have no base of its own."""
    spatial, structure, file = nibabel.spatialimages, nibabel.wrapstruct, nibabel.filebasedimages
    own = (file.ImageFileError, spatial.HeaderDataError, structure.WrapStructError)
    return (*own, ValueError, KeyError, OSError, EOFError, zlib.error)


def _check_gzip(spec: str) -> None:
    """Read a compressed file to its end, where its checksum is; nibabel stops at the last voxel."""
    if spec.lower().endswith(".gz"):
        with gzip.open(spec) as file:
            while file.read(BLOCK_BYTES):
                pass
