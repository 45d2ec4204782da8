"""Read the header and the pixels of image files, with errors that name the file."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tifffile
from PIL import Image

from ffn.errors import FfnError, VolumeError
from ffn.io.foreign import image_format

_PIL_DTYPES = {"1": "bool", "L": "uint8", "I;16": "uint16", "I;16B": "uint16", "I": "int32", "F": "float32"}
_TRUNCATED = re.compile(r"invalid \w*\s?offset|corrupted|failed to reshape")

Image.MAX_IMAGE_PIXELS = None  # sections of EM exceed the size that Pillow takes for a decompression bomb


class Header(NamedTuple):
    """Size and type of a slice."""

    shape_yx: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        """Return type and size, for messages."""
        return f"{self.dtype} {' x '.join(map(str, self.shape_yx))} (y x)"


def read_header(path: Path) -> Header:
    """Read the size and type of a grey image without decoding it."""
    with decoding_errors(path):
        if image_format(path) != "TIFF":
            with Image.open(path, formats=[image_format(path)]) as image:
                if image.mode not in _PIL_DTYPES:
                    raise _colour(path, image.mode)
                return _grey_header(path, (image.height, image.width), np.dtype(_PIL_DTYPES[image.mode]))
        with tifffile.TiffFile(path, is_ome=False) as file:
            if len(file.pages) != 1:
                raise VolumeError(
                    f"{path}: cannot be decoded as a slice, for it holds {len(file.pages)} pages, expected one. "
                    "Name this file alone to read it as a multipage TIFF"
                )
            return tiff_header(path, file.pages.first)


def read_pixels(path: Path) -> np.ndarray:
    """Decode an image, of shape (Y, X)."""
    with decoding_errors(path):
        if image_format(path) == "TIFF":
            return tifffile.imread(path, is_ome=False)
        with Image.open(path, formats=[image_format(path)]) as image:
            return np.asarray(image)


def tiff_header(path: Path, page: tifffile.TiffPage) -> Header:
    """Return the size and type of a TIFF page; refuse a page that is not grey integers, or has white as 0."""
    photometric = tifffile.PHOTOMETRIC(page.photometric)
    if page.samplesperpixel != 1 or photometric == tifffile.PHOTOMETRIC.PALETTE:
        raise _colour(path, photometric.name)
    if photometric == tifffile.PHOTOMETRIC.MINISWHITE:
        raise VolumeError(f"{path}: stores white as 0, expected black as 0. Invert its lookup table and save it again")
    if page.dtype is None or page.ndim != 2:
        raise VolumeError(
            f"{path}: has pixels of shape {page.shape} and type {page.dtype}, expected a grey slice. Convert the stack"
        )
    return _grey_header(path, page.shape, page.dtype.newbyteorder("="))


@contextlib.contextmanager
def decoding_errors(path: Path) -> Iterator[None]:
    """Turn the errors of decoders into one that names the file.

    Of a truncated file, tifffile only logs that, and returns the remaining pages.
    """
    complaints = _Complaints()
    logger = logging.getLogger("tifffile")
    logger.addHandler(complaints)
    logger.propagate = False
    try:
        yield
    except FfnError:
        raise
    except Exception as error:  # decoders raise SyntaxError, zlib.error, struct.error and more
        complaints.found.append(str(error))
    finally:
        logger.removeHandler(complaints)
        logger.propagate = True
    if complaints.found:
        reason = " ".join(complaints.found[0].split())
        raise VolumeError(f"{path}: cannot be decoded ({reason}), expected a complete image. Restore the file")


class _Complaints(logging.Handler):
    """Collects the log messages of tifffile about truncated files."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if _TRUNCATED.search(message):
            self.found.append(message)


def _grey_header(path: Path, shape_yx: tuple[int, ...], dtype: np.dtype) -> Header:
    if dtype.kind not in "ui":
        raise VolumeError(f"{path}: has pixels of type {dtype}, expected integers. Convert the stack")
    return Header(shape_yx, dtype)


def _colour(path: Path, mode: str) -> VolumeError:
    return VolumeError(
        f"{path}: is a colour image ({mode}), expected one grey channel. "
        "Convert the stack, for example: magick mogrify -path grey/ -colorspace Gray *.png"
    )
