import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.io.foreign.decoding import Header, read_header, read_pixels

from .readers import voxels

PLANE = voxels()[0]


def save(path, array, mode=None):
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)


def flip_byte(path, index):
    content = bytearray(path.read_bytes())
    content[index] ^= 255
    path.write_bytes(content)


def write_tiff(path, array=PLANE, **options):
    tifffile.imwrite(path, array, **options)


BAD_PNGS = [
    ("RGB", lambda path: save(path, PLANE, "RGB")),
    ("LA", lambda path: save(path, PLANE, "LA")),
    ("(P)", lambda path: save(path, PLANE, "P")),
    ("bool", lambda path: save(path, PLANE > 9)),
    ("cannot identify", lambda path: path.write_bytes(b"<html>404</html>")),
    ("decoded", lambda path: path.write_bytes(path.read_bytes()[:-60])),
    ("decoded", lambda path: flip_byte(path, -30)),
]
BAD_TIFFS = [
    ("RGB", lambda path: write_tiff(path, np.zeros((12, 20, 3), np.uint8), photometric="rgb")),
    ("PALETTE", lambda path: write_tiff(path, photometric="palette", colormap=np.zeros((3, 256), np.uint16))),
    ("white", lambda path: write_tiff(path, photometric="miniswhite")),
    ("5 pages", lambda path: write_tiff(path, voxels())),
    ("float32", lambda path: write_tiff(path, PLANE.astype(np.float32))),
    ("decoded", lambda path: path.write_bytes(path.read_bytes()[:-60])),
    ("decoded", lambda path: path.write_bytes(b"II*\0 and then no image")),
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


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_the_header_describes_the_pixels(tmp_path, suffix, dtype):
    path = tmp_path / f"slice{suffix}"
    (tifffile.imwrite if suffix == ".tif" else save)(path, PLANE.astype(dtype))
    assert read_header(path) == Header((12, 20), np.dtype(dtype))
    np.testing.assert_array_equal(read_pixels(path), PLANE.astype(dtype))
