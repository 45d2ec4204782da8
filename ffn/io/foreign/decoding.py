"""Read the header and the pixels of image files, with errors that name the file."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import imagecodecs
import numpy as np
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.io.atomic import unreadable
from ffn.io.store_names import image_format

Reading = Literal["grey", "ids", "rgb"]  # levels, indices of a palette, or ids of 24 bits in red, green and blue

_PIL_DTYPES = {"1": "bool", "L": "uint8", "I;16": "uint16", "I;16B": "uint16", "I": "int32", "F": "float32"}
_PIL_COLOURS = ("LA", "RGB", "RGBA", "P")
# Bytes of pixels that a codec can make of one byte: deflate 1,032, with 1 bit for a pixel eight times as many; zstd,
# of TIFF, 32,768.
_MAX_RATIO = {"PNG": 8_256, "JPEG": 8_256, "TIFF": 40_000}
_TRUNCATED = re.compile(r"invalid \w*\s?offset|corrupted|failed to reshape")
_FOUND: dict[object, list[str]] = {}  # complaints, by the files that are read now

Image.MAX_IMAGE_PIXELS = None  # sections of EM exceed the size that Pillow takes for a decompression bomb


class Header(NamedTuple):
    """Size and type of a slice, and its channels where it is saved in colour: LA, RGB, RGBA or P (a palette)."""

    shape_yx: tuple[int, ...]
    dtype: np.dtype
    channels: str = ""

    def __str__(self) -> str:
        """Return type, size and channels, for messages."""
        return f"{self.dtype} {' x '.join(map(str, self.shape_yx))} (y x) {self.channels}".rstrip()


def read_header(path: Path) -> Header:
    """Read the size and type of an image without decoding it."""
    with decoding_errors(path):
        if image_format(path) != "TIFF":
            with Image.open(path, formats=[image_format(path)]) as image:
                channels = image.mode if image.mode in _PIL_COLOURS else ""
                dtype = _PIL_DTYPES.get("I;16" if _is_deep(image) else "L" if channels else image.mode)
                if dtype is None:
                    raise _colour(path, image.mode)
                return _plausible(path, Header((image.height, image.width), np.dtype(dtype), channels))
        with tifffile.TiffFile(path, is_ome=False) as file:
            return tiff_header(path, _only_page(path, file))


def read_pixels(path: Path, reading: Reading = "grey") -> np.ndarray:
    """Decode an image, of shape (Y, X)."""
    with decoding_errors(path):
        if image_format(path) == "TIFF":
            with tifffile.TiffFile(path, is_ome=False) as file:
                page = _only_page(path, file)
                return tiff_pixels(path, page, page.asarray(), reading)
        with Image.open(path, formats=[image_format(path)]) as image:
            if image.mode in _PIL_COLOURS and _is_deep(image):  # Pillow would cut 16 bits to 8
                return _one_channel(path, imagecodecs.png_decode(path.read_bytes()), reading)
            if image.mode == "P" and reading != "ids":
                plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
                return _one_channel(path, np.asarray(plain), reading)
            return _one_channel(path, np.asarray(image), reading)


def full_pages(file: tifffile.TiffFile) -> list[tifffile.TiffPage]:
    """Return the pages of a TIFF without previews."""
    return [page for page in (page.aspage() for page in file.pages) if not page.is_reduced]


def tiff_header(path: Path, page: tifffile.TiffPage) -> Header:
    """Return the size and type of a TIFF page; refuse one that is not grey, a palette or RGB, or has white as 0."""
    photometric = tifffile.PHOTOMETRIC(page.photometric)
    if photometric == tifffile.PHOTOMETRIC.MINISWHITE:
        raise VolumeError(f"{path}: stores white as 0, expected black as 0. Invert its lookup table and save it again")
    is_palette = photometric == tifffile.PHOTOMETRIC.PALETTE
    channels = "P" if is_palette else {1: "", 2: "LA", 3: "RGB", 4: "RGBA"}.get(page.samplesperpixel)
    if channels is None or photometric.name not in ("MINISBLACK", "PALETTE", "RGB", "YCBCR"):
        raise _colour(path, photometric.name)
    if page.dtype is None or page.ndim != 2 + (page.samplesperpixel > 1):
        raise VolumeError(f"{path}: has pixels of shape {page.shape} ({page.dtype}), expected a grey slice. Convert it")
    return _plausible(path, Header((page.imagelength, page.imagewidth), page.dtype.newbyteorder("="), channels))


def tiff_pixels(path: Path, page: tifffile.TiffPage, pixels: np.ndarray, reading: Reading) -> np.ndarray:
    """Return what was decoded of a page as one channel, of shape (Y, X)."""
    if page.photometric == tifffile.PHOTOMETRIC.PALETTE and reading != "ids":
        pixels = (np.asarray(page.colormap) >> 8).astype(np.uint8)[:, pixels].transpose(1, 2, 0)
    elif page.samplesperpixel > 1 and page.planarconfig == tifffile.PLANARCONFIG.SEPARATE:
        pixels = pixels.transpose(1, 2, 0)
    return _one_channel(path, pixels, reading)


@contextlib.contextmanager
def decoding_errors(path: Path) -> Iterator[None]:
    """Turn the errors of decoders into one that names the file.

    Of a truncated file, tifffile only logs that, and returns the remaining pages.
    """
    key, found = object(), list[str]()
    logging.getLogger("tifffile").addFilter(_notice)  # once
    with unreadable(path, "a complete image. Restore it"):
        _FOUND[key] = found
        try:
            yield
        finally:
            del _FOUND[key]
        if found:
            raise ValueError(found[0])


def _notice(record: logging.LogRecord) -> bool:
    """Keep a message of tifffile for all files that are read now: which one it means, and in which thread, is open."""
    if _TRUNCATED.search(record.getMessage()):
        for found in list(_FOUND.values()):
            found.append(record.getMessage())
    return not _FOUND


def _plausible(path: Path, header: Header) -> Header:
    """Refuse a header that declares more pixels than a file of this size can hold, before a decoder makes room."""
    held, declared = path.stat().st_size, math.prod(header.shape_yx) * header.dtype.itemsize
    if declared > held * _MAX_RATIO[image_format(path)]:
        found = f"{path}: declares {declared:,} bytes of pixels in a file of {held:,}"
        raise VolumeError(f"{found}, expected a complete image. Restore the file")
    return header


def _is_deep(image: Image.Image) -> bool:
    """Whether the channels of a PNG have 16 bits."""
    return any(";16" in str(tile.args) for tile in getattr(image, "tile", ()))


def _only_page(path: Path, file: tifffile.TiffFile) -> tifffile.TiffPage:
    pages = full_pages(file)
    if len(pages) != 1:
        raise VolumeError(f"{path}: cannot be read as a slice: it has {len(pages)} pages. Name it alone to read all")
    return pages[0]


def _one_channel(path: Path, colours: np.ndarray, reading: Reading) -> np.ndarray:
    """Return the grey levels, or the ids, that colours of shape (Y, X, channels) stand for; other pixels stay."""
    if colours.ndim < 3:
        return colours
    red, last = colours[..., 0], colours[..., -1]
    opaque = np.iinfo(colours.dtype).max if colours.dtype.kind in "ui" else 1
    if colours.shape[-1] in (2, 4) and (last != opaque).any():
        y, x = np.argwhere(last != opaque)[0]
        found = f"{path}: alpha is {last[y, x]} at y, x {y}, {x}, expected {opaque} everywhere"
        raise VolumeError(f"{found}. Take it off: magick mogrify -path opaque/ -alpha off *{path.suffix}")
    if colours.shape[-1] < 3:
        return red
    green, blue = colours[..., 1], colours[..., 2]
    if reading == "rgb":
        if colours.dtype != np.uint8:
            raise VolumeError(f"{path}: has colours of {colours.dtype}, expected ids in colours of 8 bits. Save it so")
        return red.astype(np.uint32) << 16 | green.astype(np.uint32) << 8 | blue
    differ = (red != green) | (green != blue)
    if differ.any():
        y, x = np.argwhere(differ)[0]
        found = f"{path}: red, green and blue are {red[y, x]}, {green[y, x]}, {blue[y, x]} at y, x {y}, {x}"
        if reading == "ids":
            raise VolumeError(f"{found}, expected ids. If colours stand for ids, add --colour-ids rgb (colour_ids)")
        command = f"magick mogrify -path red/ -channel R -separate *{path.suffix}"
        raise VolumeError(f"{found}, expected one grey level. Of an image, save one channel alone: {command}")
    return red


def _colour(path: Path, mode: str) -> VolumeError:
    return VolumeError(f"{path}: is a colour image ({mode}), expected one channel, or RGB. Save it so, without a loss")
