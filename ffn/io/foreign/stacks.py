"""Stacks of image files, and multipage TIFF, as volumes that are decoded slice by slice."""

from __future__ import annotations

import glob
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tifffile

from ffn.errors import VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.foreign.decoding import Header, decoding_errors, read_header, read_pixels, tiff_header
from ffn.io.foreign.numbering import FORMATS, image_format, natural_key, require_series
from ffn.io.volume import require_inside


class SliceVolume(ABC):
    """Base of stacks; see `ffn.io.volume.Volume` for the attributes."""

    def __init__(self, name: str, num_slices: int, header: Header) -> None:
        self.name = name
        self.box = Box.from_shape(zyx((num_slices, *header.shape_yx)))
        self.chunk_zyx: ZYX | None = zyx((1, *header.shape_yx))  # is decoded as a whole
        self.dtype = header.dtype
        self.voxel_size_zyx_nm: VoxelSize | None = None  # resolution tags rarely refer to the specimen
        self.provenance: dict = {}

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all), decoding every slice that it touches."""
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
        """Close the file, if one is open."""
        return


class ImageStack(SliceVolume):
    """One PNG, JPEG or TIFF file per slice; all headers are read at once, to find a misfit before any work."""

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self._paths = paths
        self._header = read_header(paths[0])
        super().__init__(name, len(paths), self._header)
        for path in paths[1:]:
            self._require_same(path, read_header(path))

    def read_slice(self, index: int) -> np.ndarray:
        """Return the slice at z = `index` as an array of shape (Y, X)."""
        pixels = read_pixels(self._paths[index])
        self._require_same(self._paths[index], Header(pixels.shape, pixels.dtype.newbyteorder("=")))
        return pixels

    def _require_same(self, path: Path, header: Header) -> None:
        if header != self._header:
            raise VolumeError(
                f"{path}: is {header} but {self._paths[0].name} is {self._header}, expected equal slices. Convert it"
            )


class TiffVolume(SliceVolume):
    """A multipage TIFF, one page per slice."""

    def __init__(self, spec: str) -> None:
        self._path = path = Path(spec)
        with decoding_errors(path):
            self._file = tifffile.TiffFile(path, is_ome=False)  # pages are slices even where OME calls them time points
        try:
            with decoding_errors(path):
                if 1 < len(self._file.series) == len(self._file.pages):  # slices appended one by one
                    self._file.close()
                    self._file = tifffile.TiffFile(path, is_ome=False, is_shaped=False)
                self._stack = _only_stack(path, self._file.series)
                header = tiff_header(path, self._stack.keyframe)
                _require_one_channel(path, self._file)
        except VolumeError:
            self.close()
            raise
        super().__init__(spec, self._stack.size // np.prod(header.shape_yx, dtype=int), header)
        self._offset = self._stack.dataoffset  # of voxels that lie in the file as they are, one after another
        if self._offset is not None:
            self.chunk_zyx = None

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        if self._offset is None:
            return super().read(box)
        box = self.box if box is None else box
        require_inside(self, box)
        with decoding_errors(self._path):
            # Not by page: of a large stack, ImageJ describes the first slice alone, and the others follow its pixels.
            dtype = self.dtype.newbyteorder(self._file.byteorder)
            voxels = np.memmap(self._path, dtype, "r", self._offset, self.box.shape)
            return voxels[box.slices()].astype(self.dtype)

    def read_slice(self, index: int) -> np.ndarray:
        """Return the slice at z = `index` as an array of shape (Y, X)."""
        with decoding_errors(self._path):
            return self._file.asarray(key=index, series=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_slices(spec: str) -> ImageStack:
    """Open the images in a folder, or those that a glob names, in natural order."""
    names = Path(spec).iterdir() if Path(spec).is_dir() else map(Path, glob.glob(spec, recursive=True))
    found = [path for path in names if image_format(path) and path.is_file() and not path.name.startswith(".")]
    paths = sorted(found, key=natural_key)
    if not paths:
        raise VolumeError(f"{spec}: holds no image, expected slices named {' '.join(f'*{end}' for end in FORMATS)}")
    if other := next((path for path in paths if image_format(path) != image_format(paths[0])), None):
        raise VolumeError(f"{other}: is next to {paths[0].name}, expected one format. Choose slices with a glob")
    require_series(paths)
    return ImageStack(paths, spec)


def _only_stack(path: Path, series: list[tifffile.TiffPageSeries]) -> tifffile.TiffPageSeries:
    """Return the only series, after checking that it has one axis besides y and x."""
    if len(series) != 1:
        sizes = [one.shape for one in series]
        raise VolumeError(
            f"{path}: holds images of unequal size or type {sizes}, expected one stack of equal slices. Split the file"
        )
    (stack,) = series
    if sum(n > 1 for n in stack.shape) - sum(n > 1 for n in stack.keyframe.shape) > 1:
        raise VolumeError(
            f"{path}: has axes {stack.axes} of shape {stack.shape}, expected one channel and one time. Save one alone"
        )
    return stack


def _require_one_channel(path: Path, file: tifffile.TiffFile) -> None:
    """Refuse pages of several OME channels or times, which are slices only where a single axis is longer than 1."""
    pixels = re.search(r"<(?:\w+:)?Pixels\b[^>]*>", file.pages.first.description)
    sizes = dict(re.findall(r'\bSize([ZCT])="(\d+)"', pixels[0])) if pixels else {}
    long = {axis.lower(): int(size) for axis, size in sizes.items() if int(size) > 1}
    # One file of a set describes all of it, so it may have fewer pages.
    if len(long) > 1 and len(file.pages) > max(long.values()):
        found = " and ".join(f"{size} along {axis}" for axis, size in long.items())
        raise VolumeError(f"{path}: has {found}, expected one channel and one time. Save one alone")
