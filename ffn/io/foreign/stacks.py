"""Image slices in files, and multipage TIFF, as volumes; decoded slice by slice."""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile

from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.foreign.decoding import Header, decoding_errors, read_header, read_pixels, tiff_header
from ffn.io.foreign.numbering import FORMATS, image_format, natural_key, require_series
from ffn.io.volume import require_inside


class SliceVolume(ABC):
    """What stacks have in common; see `ffn.io.volume.Volume` for the attributes."""

    def __init__(self, name: str, num_slices: int, header: Header) -> None:
        self.name = name
        self.box = Box.from_shape(zyx((num_slices, *header.shape_yx)))
        self.dtype = header.dtype
        self.voxel_size_zyx_nm: VoxelSize | None = None  # resolution tags rarely speak of the specimen
        self.provenance: dict = {}

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all); every slice it touches is decoded whole.

        Raises
        ------
        VolumeError
            If `box` is not inside the volume or a slice is damaged.
        """
        box = self.box if box is None else box
        require_inside(self, box)
        z, y, x = box.slices()
        out = np.empty(box.shape, self.dtype)
        for index, plane in enumerate(out, z.start):
            plane[:] = self.read_slice(index)[y, x]
        return out

    @abstractmethod
    def read_slice(self, index: int) -> np.ndarray:
        """Return the slice at z = `index` as an array of shape (Y, X)."""

    def close(self) -> None:
        """Release what is open."""
        return


class ImageStack(SliceVolume):
    """One file per slice.

    Parameters
    ----------
    paths : sequence of Path
        PNG, JPEG or TIFF in order of z. All headers are read at once: a misfit is found before any work.
    name : str
        What the user called it.

    Raises
    ------
    VolumeError
        Naming the first file that is unreadable, in colour, or of another size or type than the first.
    """

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self._paths = paths
        self._header = read_header(paths[0])
        super().__init__(name, len(paths), self._header)
        for path in paths[1:]:
            self._require_same(path, read_header(path))

    def read_slice(self, index: int) -> np.ndarray:
        """Return the slice at z = `index` as an array of shape (Y, X).

        Raises
        ------
        VolumeError
            If the file is damaged or was replaced by another one.
        """
        pixels = read_pixels(self._paths[index])
        self._require_same(self._paths[index], Header(pixels.shape, pixels.dtype.newbyteorder("=")))
        return pixels

    def _require_same(self, path: Path, header: Header) -> None:
        if header != self._header:
            raise VolumeError(f"{path}: is {header} but {self._paths[0].name} is {self._header}, expected equal slices")


class TiffVolume(SliceVolume):
    """A multipage TIFF, one page per slice.

    Raises
    ------
    VolumeError
        If the file is damaged, in colour, or holds more than one stack of equal pages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with decoding_errors(path):
            self._file = tifffile.TiffFile(path, is_ome=False)  # pages are slices, also where OME calls them time
        try:
            with decoding_errors(path):
                self._stack = _only_stack(path, self._file.series)
                header = tiff_header(path, self._stack.keyframe)
        except VolumeError:
            self.close()
            raise
        super().__init__(str(path), self._stack.size // np.prod(header.shape_yx, dtype=int), header)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all).

        Raises
        ------
        VolumeError
            If `box` is not inside the volume or the file is damaged.
        """
        if self._stack.dataoffset is None:
            return super().read(box)
        box = self.box if box is None else box
        require_inside(self, box)
        with decoding_errors(self._path):
            # Not page by page: ImageJ writes one page for a large stack, and the other slices right behind it.
            voxels = tifffile.memmap(self._path, mode="r", is_ome=False).reshape(self.box.shape)
            return voxels[box.slices()].astype(self.dtype)

    def read_slice(self, index: int) -> np.ndarray:
        """Return the slice at z = `index` as an array of shape (Y, X).

        Raises
        ------
        VolumeError
            If the file is damaged.
        """
        with decoding_errors(self._path):
            return self._file.asarray(key=index, series=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def find_slices(spec: str) -> list[Path]:
    """List the slices of a folder or glob in natural order.

    Parameters
    ----------
    spec : str
        Folder, of which all images are taken, or glob.

    Raises
    ------
    VolumeError
        If there are none, formats are mixed, or their numbers have a gap.
    """
    found = _list(spec)
    paths = sorted((p for p in found if image_format(p) and not p.name.startswith(".")), key=natural_key)
    if not paths:
        raise VolumeError(
            f"{spec}: holds no image, expected slices named {' '.join('*' + suffix for suffix in FORMATS)}"
        )
    for path in paths[1:]:
        if image_format(path) != image_format(paths[0]):
            raise VolumeError(
                f"{path}: is {image_format(path)} beside {paths[0].name}, expected slices of one format. "
                "Choose them with a glob"
            )
    require_series(paths)
    return paths


def _list(spec: str) -> list[Path]:
    if Path(spec).is_dir():
        return [path for path in Path(spec).iterdir() if path.is_file()]
    paths = [Path(name) for name in glob.glob(spec, recursive=True) if Path(name).is_file()]
    if not paths:
        raise VolumeError(f"{spec}: no such file or folder, and as a glob it matches no file. Check the path")
    return paths


def _only_stack(path: Path, series: list[tifffile.TiffPageSeries]) -> tifffile.TiffPageSeries:
    """Return the only series, if it has one axis beside y and x."""
    if len(series) != 1:
        sizes = [one.shape for one in series]
        raise VolumeError(f"{path}: holds images of unequal size or type {sizes}, expected one stack of equal slices")
    (stack,) = series
    if sum(n > 1 for n in stack.shape) - sum(n > 1 for n in stack.keyframe.shape) > 1:
        raise VolumeError(f"{path}: has axes {stack.axes} of shape {stack.shape}, expected one channel and one time")
    return stack
