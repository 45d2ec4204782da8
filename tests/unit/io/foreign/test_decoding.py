import contextlib
import logging
import struct
import zlib

import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.io.foreign.decoding import decoding_errors, read_header, read_pixels

from .readers import voxels

PLANE = voxels()[0]
COLOURS = voxels()[:3].transpose(1, 2, 0)


def save(path, array, mode=None):
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)


def flip_byte(path, index):
    content = bytearray(path.read_bytes())
    content[index] ^= 255
    path.write_bytes(content)


def write_tiff(path, array=PLANE, **options):
    tifffile.imwrite(path, array, **options)


def declare_more(path):
    content = path.read_bytes()
    header = b"IHDR" + struct.pack(">II", 100_000, 200_000) + content[24:29]
    path.write_bytes(content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:])


BAD_PNGS = [
    ("red, green and blue", lambda path: save(path, COLOURS)),
    ("red, green and blue", lambda path: save(path, COLOURS, "P")),
    ("alpha is 9", lambda path: save(path, np.dstack([PLANE, PLANE * 0 + 9]))),
    ("cannot identify", lambda path: path.write_bytes(b"<html>404</html>")),
    ("cannot be read", lambda path: path.write_bytes(path.read_bytes()[:-60])),
    ("cannot be read", lambda path: flip_byte(path, -30)),
    ("declares 20,000,000,000 bytes of pixels", declare_more),
]
BAD_TIFFS = [
    ("red, green and blue", lambda path: write_tiff(path, COLOURS, photometric="rgb")),
    ("SEPARATED", lambda path: write_tiff(path, np.zeros((12, 20, 4), np.uint8), photometric="separated")),
    ("white", lambda path: write_tiff(path, photometric="miniswhite")),
    ("5 pages", lambda path: write_tiff(path, voxels())),
    ("cannot be read", lambda path: path.write_bytes(path.read_bytes()[:-60])),
    ("cannot be read", lambda path: path.write_bytes(b"II*\0 and then no image")),
]


def refuse(path, part):
    with pytest.raises(VolumeError) as caught:
        read_header(path)
        read_pixels(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and part in message


@pytest.mark.parametrize(("found", "damage"), BAD_PNGS)
def test_a_png_that_is_not_a_grey_slice_is_refused(tmp_path, found, damage):
    save(tmp_path / "slice10.png", PLANE)
    damage(tmp_path / "slice10.png")
    refuse(tmp_path / "slice10.png", found)


@pytest.mark.parametrize(("found", "damage"), BAD_TIFFS)
def test_a_tiff_that_is_not_a_grey_slice_is_refused(tmp_path, found, damage):
    write_tiff(tmp_path / "10.tif")
    damage(tmp_path / "10.tif")
    refuse(tmp_path / "10.tif", found)


def test_a_lack_of_memory_is_no_fault_of_the_image(tmp_path):
    with pytest.raises(VolumeError, match="10.png: .*memory"), decoding_errors(tmp_path / "10.png"):
        raise MemoryError


def test_a_complaint_reaches_its_file_while_another_is_read(tmp_path):
    with contextlib.suppress(VolumeError), decoding_errors(tmp_path / "another.tif"):
        with pytest.raises(VolumeError, match="10.tif"), decoding_errors(tmp_path / "10.tif"):
            logging.getLogger("tifffile").warning("invalid offset")


def write_png16(path, array):
    path.write_bytes(imagecodecs.png_encode(array))


DEEP = PLANE.astype(np.uint16) * 200
GREY_TABLE = np.stack([np.arange(256, dtype=np.uint16) * 257] * 3)
COLOUR_TABLE = np.stack([GREY_TABLE[0], GREY_TABLE[0, ::-1], GREY_TABLE[0]])
IDS = COLOURS.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
COLOURED = [
    ("png", "grey", PLANE, lambda path: save(path, PLANE, "LA")),
    ("png", "grey", PLANE, lambda path: save(path, PLANE, "RGBA")),
    ("png", "ids", PLANE, lambda path: save(path, PLANE, "RGB")),
    ("png", "ids", PLANE > 9, lambda path: save(path, PLANE > 9)),
    ("png", "grey", DEEP, lambda path: write_png16(path, np.dstack([DEEP] * 3))),
    ("png", "rgb", IDS, lambda path: save(path, COLOURS)),
    ("tif", "rgb", IDS, lambda path: write_tiff(path, COLOURS, photometric="rgb")),
    (
        "tif",
        "rgb",
        IDS,
        lambda path: write_tiff(path, COLOURS.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"),
    ),
    ("tif", "grey", DEEP, lambda path: write_tiff(path, np.dstack([DEEP] * 3), photometric="rgb")),
    ("tif", "grey", PLANE, lambda path: write_tiff(path, photometric="palette", colormap=GREY_TABLE)),
    ("tif", "ids", PLANE, lambda path: write_tiff(path, photometric="palette", colormap=COLOUR_TABLE)),
]


@pytest.mark.parametrize(("suffix", "reading", "expected", "write"), COLOURED)
def test_colours_with_one_meaning_are_read(tmp_path, suffix, reading, expected, write):
    path = tmp_path / f"s.{suffix}"
    write(path)
    found = read_pixels(path, reading)
    np.testing.assert_array_equal(found, expected)
    assert read_header(path).shape_yx == found.shape and (reading == "rgb" or read_header(path).dtype == found.dtype)


def test_indices_of_a_palette_are_ids_whatever_their_colours(tmp_path):
    image = Image.fromarray(PLANE)
    image.putpalette(bytes(range(255, -1, -1)) * 3)
    image.save(tmp_path / "s.png")
    np.testing.assert_array_equal(read_pixels(tmp_path / "s.png", "ids"), PLANE)
    with pytest.raises(VolumeError, match="uint16"):
        write_png16(tmp_path / "s.png", np.dstack([DEEP] * 3))
        read_pixels(tmp_path / "s.png", "rgb")
