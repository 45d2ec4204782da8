"""One NumPy array of shape (Z, Y, X), memory-mapped; the format has no voxel size and no offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ffn.errors import VolumeError
from ffn.io.volume import Volume

TITLE = "NumPy array (.npy)"


def recognises(spec: str) -> bool:
    """Whether `spec` is a .npy file."""
    return Path(spec).suffix.lower() == ".npy" and Path(spec).is_file()


def open_volume(spec: str) -> Volume:
    """Open the file.

    Raises
    ------
    VolumeError
        If it is truncated, holds pickled objects, or is not one 3D array of numbers.
    """
    from ffn.io.foreign.arrays import ArrayVolume

    try:
        array = np.lib.format.open_memmap(spec, mode="r")  # unlike np.load, it never unpickles
    except (ValueError, OSError) as reason:
        raise VolumeError(f"{spec}: cannot be read ({reason}), expected one whole array. Save it again") from None
    return ArrayVolume(spec, array)
