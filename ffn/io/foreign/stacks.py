"""Stacks of image files, and multipage TIFF, as volumes that are decoded slice by slice."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import numpy as np
import tifffile

from ffn.errors import VolumeError
from ffn.geometry import Box, zyx
from ffn.io.config import FoundConfig
from ffn.io.foreign import decoding
from ffn.io.foreign.decoding import Header, Reading, decoding_errors
from ffn.io.store_names import IMAGE_FORMATS, files_named, image_format
from ffn.io.volume import Volume, as_whole, number_type

log = logging.getLogger(__name__)

# Ways to read numbers in names: z=0.25um holds a decimal, run1.9.png and run1.10.png two numbers.
_DECIMAL, _NUMBER = re.compile(r"((?:(?<==)-)?\d+(?:\.\d+)?)"), re.compile(r"(\d+)")


class SliceVolume(Volume):
    """Base of stacks. They have no voxel size: resolution tags rarely refer to the specimen."""

    def __init__(self, name: str, num_slices: int, header: Header) -> None:
        self._header = header
        self._reading: Reading = "grey"
        box = Box.from_shape(zyx((num_slices, *header.shape_yx)))
        super().__init__(name, box, number_type(name, header.dtype))
        self.chunk_zyx = zyx((1, *header.shape_yx))

    def as_image(self) -> Volume:
        """Return grey levels, also where they are saved in colour."""
        return self._read_as("grey", "its grey levels are read")

    def as_labels(self, colour_ids: str = "refuse") -> Volume:
        """Return ids: indices of a palette, or 65536 R + 256 G + B with ``rgb``."""
        if colour_ids == "rgb" and self._header.channels in ("", "LA"):
            raise VolumeError(f"{self.name}: has no colours, expected some for --colour-ids rgb. Leave the option out")
        if colour_ids == "rgb":
            return self._read_as("rgb", "each colour is read as the id 65536 R + 256 G + B")
        return as_whole(self._read_as("ids", "its grey levels, or indices of a palette, are read as ids"))

    def _read_as(self, reading: Reading, said: str) -> SliceVolume:
        """Return the same slices, read in another way; the first one of those in colour is checked now."""
        if not self._header.channels:
            return self
        other = copy.copy(self)
        other._reading = reading
        if reading == "rgb":
            other.dtype = np.dtype(np.uint32)
        other._read_slice(0)
        log.info("%s: is saved in colour (%s); %s", self.name, self._header.channels, said)
        return other

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

    def __init__(self, paths: Sequence[Path | None], name: str, gap: VolumeError | None = None) -> None:
        self._slices = [(path, decoding.read_header(path)) if path else None for path in paths]
        there = [each for each in self._slices if each]
        (self._first, first), shape = there[0], np.max([header.shape_yx for _, header in there], axis=0)
        whole = first._replace(shape_yx=tuple(shape.tolist()))
        super().__init__(name, len(paths), whole)
        self._refusals = {"missing_sections": gap}
        for path, header in there:
            self._require_same(path, header._replace(shape_yx=whole.shape_yx), whole)
            if header != first:
                fill = "or fill it with 0: --unequal-sections pad (unequal_sections)"
                self._refusals["unequal_sections"] = VolumeError(f"{self._unlike(path, header, first)}, {fill}")
        self.odd_sections = [
            (z, "small", f"{each[1]}, 0 beyond it") if each else (z, "missing", "no file, read as 0")
            for z, each in enumerate(self._slices)
            if each is None or each[1] != whole
        ]

    def require_data(self, config: FoundConfig | None = None) -> None:
        """Refuse a series with gaps, or slices of unequal size, unless they are to be filled."""
        for option, refusal in self._refusals.items():
            if refusal and getattr(config, option, "refuse") == "refuse":
                raise refusal

    def _read_slice(self, index: int) -> np.ndarray:
        found = self._slices[index]
        if found is None:
            return np.zeros(self._header.shape_yx, self.dtype)
        path, header = found
        pixels = decoding.read_pixels(path, self._reading)
        decoded = header._replace(shape_yx=pixels.shape, dtype=pixels.dtype.newbyteorder("="))
        self._require_same(path, decoded, header._replace(dtype=self.dtype))
        whole = self._header.shape_yx
        return pixels if pixels.shape == whole else np.pad(pixels, [(0, n) for n in np.subtract(whole, pixels.shape)])

    def _require_same(self, path: Path, header: Header, expected: Header) -> None:
        if header != expected:
            raise self._unlike(path, header, expected)

    def _unlike(self, path: Path, header: Header, expected: Header) -> VolumeError:
        return VolumeError(f"{path}: is {header}, expected {expected} as {self._first.name}. Convert it")


class Gap(VolumeError):
    """A number is missing in a series; `slices` has None in such places."""

    slices: list[Path | None] = []


class TiffVolume(SliceVolume):
    """A multipage TIFF, one page per slice."""

    def __init__(self, spec: str) -> None:
        self._path = path = Path(spec)
        self._lock = threading.Lock()  # pages are read from one place in the file after another
        with contextlib.ExitStack() as opened:
            with decoding_errors(path):  # pages are slices even where OME calls them time points
                self._file = opened.enter_context(tifffile.TiffFile(path, is_ome=False))
                series = self._file.series
                self._pages = decoding.full_pages(self._file) if len(series) > 1 else None  # appended, or with previews
                num_slices = len(_equal(path, self._pages)) if self._pages else _num_slices(path, series[0])
                self._keyframe = self._pages[0] if self._pages else series[0].keyframe
                header = decoding.tiff_header(path, self._keyframe)
                _require_one_channel(path, self._file)
            opened.pop_all()
        # Of 3 or 4 sections, tifffile makes planes of one RGB page, unless it is told their photometric.
        is_planar = self._keyframe.axes == "SYX" and self._keyframe.is_shaped
        self._has_planes = is_planar and num_slices == 1 and self._pages is None
        if self._has_planes:
            num_slices, header = len(header.channels), header._replace(channels="")
            log.info("%s: is marked as RGB; its %d planes are read as sections", path, num_slices)
        super().__init__(spec, num_slices, header)
        # Of voxels that lie in the file as they are, one after another.
        self._offset = None if self._pages or header.channels else series[0].dataoffset
        if self._offset is not None:
            self.chunk_zyx = None

    def as_labels(self, colour_ids: str = "refuse") -> Volume:
        """Return ids; colours that stand for ids are those of one section."""
        if colour_ids != "rgb" or not self._has_planes:
            return super().as_labels(colour_ids)
        section = copy.copy(self)
        SliceVolume.__init__(section, self.name, 1, self._header._replace(channels="RGB"))
        section._has_planes, section._offset = False, None
        return section.as_labels(colour_ids)

    def _read(self, box: Box) -> np.ndarray:
        if self._offset is None:
            return super()._read(box)
        with decoding_errors(self._path):
            # Not by page: of a large stack, ImageJ describes the first slice alone, and the others follow its pixels.
            dtype = self.dtype.newbyteorder(self._file.byteorder)
            return np.memmap(self._path, dtype, "r", self._offset, self.box.shape)[box.slices()].astype(self.dtype)

    def _read_slice(self, index: int) -> np.ndarray:
        with self._lock, decoding_errors(self._path):
            if self._has_planes:
                return self._keyframe.asarray()[index]
            pixels = self._pages[index].asarray() if self._pages else self._file.asarray(key=index, series=0)
            return decoding.tiff_pixels(self._path, self._keyframe, pixels, self._reading)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_slices(spec: str) -> ImageStack:
    """Open the images in a folder, or those that a glob names, in the order of their numbers."""
    names = Path(spec).iterdir() if Path(spec).is_dir() else files_named(spec)
    paths = sorted(p for p in names if image_format(p) and not p.is_dir() and not p.name.startswith("."))
    if not paths:
        raise VolumeError(f"{spec}: holds no image, expected slices that end with {' '.join(IMAGE_FORMATS)}")
    if other := next((path for path in paths if image_format(path) != image_format(paths[0])), None):
        raise VolumeError(f"{other}: is next to {paths[0].name}, expected one format. Choose slices with a glob")
    if lost := next((path for path in paths if not path.exists()), None):
        raise VolumeError(f"{lost}: is a link to {os.path.realpath(lost)}, which is missing. Mount or restore it")
    try:
        return ImageStack(in_series(paths), spec)
    except Gap as gap:
        return ImageStack(gap.slices, spec, gap)


def _equal(path: Path, pages: list[tifffile.TiffPage]) -> list[tifffile.TiffPage]:
    """Check that pages have one shape and type."""
    kinds = Counter(f"{page.shape} {page.dtype}" for page in pages)
    if len(kinds) != 1:
        found = ", ".join(f"{number} of {kind}" for kind, number in kinds.items())
        raise VolumeError(f"{path}: holds pages of unequal size or type, {found}. Split the file")
    return pages


def _num_slices(path: Path, stack: tifffile.TiffPageSeries) -> int:
    """Return the number of slices, after checking that there is one axis besides y and x."""
    if sum(n > 1 for n in stack.shape) - sum(n > 1 for n in stack.keyframe.shape) > 1:
        raise VolumeError(f"{path}: has axes {stack.axes} of shape {stack.shape}, expected one channel. Save one alone")
    return stack.size // np.prod(stack.keyframe.shape, dtype=int)


def _require_one_channel(path: Path, file: tifffile.TiffFile) -> None:
    """Refuse pages of several OME channels or times, which are slices only where a single axis is longer than 1."""
    pixels = re.search(r"<(?:\w+:)?Pixels\b[^>]*>", file.pages.first.description)
    sizes = dict(re.findall(r'\bSize([ZCT])="(\d+)"', pixels[0])) if pixels else {}
    long = {axis.lower(): int(size) for axis, size in sizes.items() if int(size) > 1}
    # One file of a set describes all of it, so it may have fewer pages.
    if len(long) > 1 and len(file.pages) > max(long.values()):
        found = " and ".join(f"{size} along {axis}" for axis, size in long.items())
        raise VolumeError(f"{path}: has {found}, expected one channel and one time. Save one alone")


def in_series(paths: Sequence[Path]) -> list[Path]:
    """Return slices in the order of their numbers; refuse a gap, a double number, and names that do not fit together.

    Of several numbers in the names, that of the slice is the one that rises by a constant step. Decimals are tried
    first. Names without numbers pass.

    Examples
    --------
    >>> [p.name for p in in_series([Path("s10_z=1.0um.png"), Path("s9_z=0.95um.png"), Path("s8_z=0.9um.png")])]
    ['s8_z=0.9um.png', 's9_z=0.95um.png', 's10_z=1.0um.png']
    """
    refusals = []
    for number in (_DECIMAL, _NUMBER):
        try:
            return _ordered(paths, number)
        except VolumeError as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _natural_key(path: Path, number: re.Pattern[str]) -> tuple[list[str | Decimal], str]:
    """Return the sort key that puts ``slice2`` before ``slice10``."""
    parts = number.split(str(path))
    return [Decimal(part) if i % 2 else part for i, part in enumerate(parts)], str(path)


def _ordered(paths: Sequence[Path], number: re.Pattern[str]) -> list[Path]:
    """Return slices in natural order, if a number rises by a constant step then, else in the order of one that does."""
    paths = sorted(paths, key=lambda path: _natural_key(path, number))
    if len(paths) < 2 or not any(number.search(path.name) for path in paths):
        return paths
    _require_same_pattern(paths, number)
    rows = [[Decimal(text) for text in number.findall(str(path))] for path in paths]
    columns = [column for column in zip(*rows, strict=True) if len(set(column)) > 1]
    if any(map(_rises_evenly, columns)):
        return paths
    if complete := next((column for column in columns if _rises_evenly(sorted(column))), None):
        return [path for _, path in sorted(zip(complete, paths, strict=True))]
    _refuse(paths, columns or [tuple(row[-1] for row in rows)])
    return paths


def _refuse(paths: Sequence[Path], columns: Sequence[Sequence[Decimal]]) -> None:
    """Say what is wrong with the numbers that rise, or else with the last ones."""
    series = next((column for column in columns if all(a < b for a, b in pairwise(column))), columns[-1])
    step = min(b - a for a, b in pairwise(series))
    for (previous, path), (a, b) in zip(pairwise(paths), pairwise(series), strict=True):
        if b <= a:
            found = f"number {b} comes after {a} of {previous.name}, expected rising numbers"
            raise VolumeError(f"{path}: {found}. Rename the files, or ingest each series alone")
        if b - a != step and step > 0:
            found = f"slice {a + step} is missing between {previous.name} and {path.name}, where numbers rise by {step}"
            text = f"{path.parent}: {found}. Restore it, or ingest each part alone"
            present = {(number - series[0]) / step: path for number, path in zip(series, paths, strict=True)}
            length = int(max(present)) + 1
            if length > 2 * len(paths) or any(place % 1 for place in present):  # dates, for example
                raise VolumeError(text)
            gap = Gap(f"{text}, or read 0 there: --missing-sections blank (missing_sections)")
            gap.slices = [present.get(Decimal(place)) for place in range(length)]
            raise gap


def _rises_evenly(series: Sequence[Decimal]) -> bool:
    """Whether numbers rise by a constant step, up to the rounding of their last decimal."""
    steps = [b - a for a, b in pairwise(series)]
    places = max(-int(number.as_tuple().exponent) for number in series)
    return min(steps) > 0 and max(steps) - min(steps) <= (2 * Decimal(10) ** -places if places else 0) < 2 * min(steps)


def _require_same_pattern(paths: Sequence[Path], number: re.Pattern[str]) -> None:
    """Check that all names are equal but for their numbers."""
    patterns = [number.sub("#", str(path)) for path in paths]
    common, _ = Counter(patterns).most_common(1)[0]
    for path, pattern in zip(paths, patterns, strict=True):
        if pattern != common:
            found = f"is named unlike {paths[patterns.index(common)].name}, expected one numbered series"
            raise VolumeError(f"{path}: {found}. Move the file, or choose the slices with a glob")
