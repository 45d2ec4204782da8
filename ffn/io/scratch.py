"""Arrays in files without a name: as large as the disk allows, and gone when their process is."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from ffn.geometry import ZYX, Box


class ScratchArray:
    """An array of zeros that is on a disk.

    Parameters
    ----------
    shape_zyx : tuple of int
        Its shape.
    dtype : dtype
        Type of its values.
    folder : Path or None
        Folder on the disk; None for the one that `tempfile` chooses.

    Raises
    ------
    OSError
        If the disk is full.
    """

    def __init__(self, shape_zyx: ZYX, dtype: np.dtype, folder: Path | None) -> None:
        num_bytes = Box.from_shape(shape_zyx).num_voxels * dtype.itemsize
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)  # writing to a map of a full disk would end the process
            self._pages = mmap.mmap(file.fileno(), num_bytes)
        self.values = np.frombuffer(self._pages, dtype).reshape(shape_zyx)

    def forget(self) -> None:
        """Leave it to the kernel what of the array is in memory; it does not count as the process's any more."""
        self._pages.madvise(mmap.MADV_DONTNEED)
