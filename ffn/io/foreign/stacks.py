"""Stacks of image files, and multipage TIFF, as volumes that are decoded slice by slice."""

from __future__ import annotations

import glob
import re
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import tifffile

from ffn.errors import VolumeError
from ffn.geometry import Box, zyx
from ffn.io.foreign import IMAGE_FORMATS, image_format
from ffn.io.foreign.decoding import Header, decoding_errors, read_header, read_pixels, tiff_header
from ffn.io.volume import Volume

_NUMBER = re.compile(r"(\d+)")


class SliceVolume(Volume):
    """Base of stacks. They have no voxel size: resolution tags rarely refer to the specimen."""

    def __init__(self, name: str, num_slices: int, header: Header) -> None:
        super().__init__(name, Box.from_shape(zyx((num_slices, *header.shape_yx))), header.dtype)
        self.chunk_zyx = zyx((1, *header.shape_yx))

    def _read(self, box: Box) -> np.ndarray:
        z, y, x = box.slices()
        out = np.empty(box.shape, self.dtype)
        for index, plane in enumerate(out, z.start):
            plane[:] = self._read_slice(index)[y, x]
        return out

    def _read_slice(self, index: int) -> np.ndarray:
        raise NotImplementedError


class ImageStack(SliceVolume):
    """One PNG, JPEG or TIFF file per slice; all headers are read at once, to find a misfit before any work."""

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self._paths = paths
        self._header = read_header(paths[0])
        super().__init__(name, len(paths), self._header)
        for path in paths[1:]:
            self._require_same(path, read_header(path))

    def _read_slice(self, index: int) -> np.ndarray:
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
        self._lock = threading.Lock()  # pages are read from one place in the file after another
        with decoding_errors(path):
            self._file = tifffile.TiffFile(path, is_ome=False)  # pages are slices even where OME calls them time points
        try:
            with decoding_errors(path):
                if 1 < len(self._file.series) == len(self._file.pages):  # slices appended one by one
                    self._file.close()
                    self._file = tifffile.TiffFile(path, is_ome=False, is_shaped=False)
                stack = _only_stack(path, self._file.series)
                header = tiff_header(path, stack.keyframe)
                _require_one_channel(path, self._file)
        except VolumeError:
            self.close()
            raise
        super().__init__(spec, stack.size // np.prod(header.shape_yx, dtype=int), header)
        self._offset = stack.dataoffset  # of voxels that lie in the file as they are, one after another
        if self._offset is not None:
            self.chunk_zyx = None

    def _read(self, box: Box) -> np.ndarray:
        if self._offset is None:
            return super()._read(box)
        with decoding_errors(self._path):
            # Not by page: of a large stack, ImageJ describes the first slice alone, and the others follow its pixels.
            dtype = self.dtype.newbyteorder(self._file.byteorder)
            voxels = np.memmap(self._path, dtype, "r", self._offset, self.box.shape)
            return voxels[box.slices()].astype(self.dtype)

    def _read_slice(self, index: int) -> np.ndarray:
        with self._lock, decoding_errors(self._path):
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
        raise VolumeError(
            f"{spec}: holds no image, expected slices named {' '.join(f'*{end}' for end in IMAGE_FORMATS)}"
        )
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


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that puts ``slice2`` before ``slice10``.

    Examples
    --------
    >>> [p.name for p in sorted([Path("s10.png"), Path("s2.png")], key=natural_key)]
    ['s2.png', 's10.png']
    """
    parts = _NUMBER.split(str(path))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], str(path)


def require_series(paths: Sequence[Path]) -> None:
    """Refuse slices in natural order whose numbers have a gap, or whose names do not fit together.

    The last number that differs between the names is that of the slice. It may rise by any constant step, for which the
    smallest step found is taken. Names without numbers pass.
    """
    if len(paths) < 2 or not any(_NUMBER.search(path.name) for path in paths):
        return
    _require_same_pattern(paths)
    series = _slice_numbers(paths)
    step = min(b - a for a, b in pairwise(series))
    for (previous, path), (a, b) in zip(pairwise(paths), pairwise(series), strict=True):
        if b <= a:
            raise VolumeError(
                f"{path}: number {b} comes after {a} of {previous.name}, expected rising numbers. "
                "Rename the files, or ingest each series alone"
            )
        if b - a != step and step > 0:
            raise VolumeError(
                f"{path.parent}: slice {a + step} is missing between {previous.name} and {path.name}, "
                f"expected numbers that rise by {step}. Restore it, or ingest each part alone"
            )


def _slice_numbers(paths: Sequence[Path]) -> list[int]:
    """Return the last number in each name, among those that differ between the names."""
    numbers = [[int(text) for text in _NUMBER.findall(str(path))] for path in paths]
    varying = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return list(varying[-1]) if varying else [row[-1] for row in numbers]


def _require_same_pattern(paths: Sequence[Path]) -> None:
    """Check that all names are equal but for their numbers."""
    patterns = [_NUMBER.sub("#", str(path)) for path in paths]
    common, _ = Counter(patterns).most_common(1)[0]
    for path, pattern in zip(paths, patterns, strict=True):
        if pattern != common:
            example = paths[patterns.index(common)]
            raise VolumeError(
                f"{path}: is named unlike {example.name}, expected one numbered series. "
                "Move the file, or choose the slices with a glob"
            )
