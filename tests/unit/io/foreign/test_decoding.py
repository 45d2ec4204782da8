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


BAD_PNGS = {
    "colour": (lambda path: save(path, PLANE, "RGB"), "is a colour image (RGB)"),
    "alpha": (lambda path: save(path, PLANE, "RGBA"), "is a colour image (RGBA)"),
    "grey and alpha": (lambda path: save(path, PLANE, "LA"), "is a colour image (LA)"),
    "palette": (lambda path: save(path, PLANE, "P"), "is a colour image (P)"),
    "black and white": (lambda path: save(path, PLANE > 9), "type bool"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be decoded"),
    "no image": (lambda path: path.write_bytes(b"<html>404</html>"), "cannot be decoded"),
    "other format": (lambda path: Image.fromarray(PLANE).save(path, "JPEG"), "cannot be decoded"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-60]), "cannot be decoded"),
    "damaged": (lambda path: flip_byte(path, -30), "cannot be decoded"),
}
BAD_TIFFS = {
    "colour": (
        lambda path: tifffile.imwrite(path, np.zeros((12, 20, 3), np.uint8), photometric="rgb"),
        "colour image (RGB)",
    ),
    "palette": (
        lambda path: tifffile.imwrite(path, PLANE, photometric="palette", colormap=np.zeros((3, 256), np.uint16)),
        "colour image (PALETTE)",
    ),
    "inverted": (
        lambda path: tifffile.imwrite(path, PLANE, photometric="miniswhite"),
        "white as 0",
    ),
    "several pages": (lambda path: tifffile.imwrite(path, voxels()), "holds 5 pages"),
    "float": (lambda path: tifffile.imwrite(path, PLANE.astype(np.float32)), "has pixels of type float32"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-60]), "cannot be decoded"),
    "no image": (lambda path: path.write_bytes(b"II*\0 and then no image"), "cannot be decoded"),
}


def refuse(path, parts):
    with pytest.raises(VolumeError) as caught:
        read_header(path)
        read_pixels(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("case", BAD_PNGS)
def test_a_png_that_is_no_grey_slice_is_refused(tmp_path, case):
    write, *parts = BAD_PNGS[case]
    save(tmp_path / "slice10.png", PLANE)
    write(tmp_path / "slice10.png")
    refuse(tmp_path / "slice10.png", parts)


@pytest.mark.parametrize("case", BAD_TIFFS)
def test_a_tiff_that_is_no_grey_slice_is_refused(tmp_path, case):
    write, *parts = BAD_TIFFS[case]
    tifffile.imwrite(tmp_path / "10.tif", PLANE)
    write(tmp_path / "10.tif")
    refuse(tmp_path / "10.tif", parts)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("dtype", ["u1", "u2"])
def test_the_header_describes_the_pixels(tmp_path, suffix, dtype):
    path = tmp_path / f"slice{suffix}"
    (tifffile.imwrite if suffix == ".tif" else save)(path, PLANE.astype(dtype))
    assert read_header(path) == Header((12, 20), np.dtype(dtype))
    np.testing.assert_array_equal(read_pixels(path), PLANE.astype(dtype))


def test_the_header_is_read_without_the_pixels(tmp_path):
    path = tmp_path / "slice.png"
    save(path, PLANE)
    path.write_bytes(path.read_bytes()[:60])
    assert read_header(path) == Header((12, 20), np.dtype("u1"))
    refuse(path, ["cannot be decoded"])
