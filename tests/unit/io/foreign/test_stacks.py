from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.foreign import stacks
from ffn.io.foreign.numbering import natural_key, require_series
from ffn.io.open import open_volume

from .readers import BOX, SHAPE, check, refuse, voxels


def write_slices(folder, volume, pattern="slice{}.png", start=8, step=1):
    folder.mkdir(exist_ok=True)
    for i, plane in enumerate(volume):
        path = folder / pattern.format(start + i * step)
        if path.suffix in (".tif", ".tiff"):
            tifffile.imwrite(path, plane)
        else:
            Image.fromarray(plane).save(path)
    return folder


# --- order of slices ---------------------------------------------------------------------------------------


def test_numbers_count_not_letters():
    names = ["s10.png", "s2.png", "s1.png", "s02b.png", "S3.png"]
    assert [p.name for p in sorted(map(Path, names), key=natural_key)] == [
        "S3.png",
        "s1.png",
        "s2.png",
        "s02b.png",
        "s10.png",
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["a.png"],
        ["a.png", "b.png"],
        ["7.png", "8.png"],
        ["z0000.tif", "z0040.tif", "z0080.tif"],
        ["run3_z9_ch1.png", "run3_z10_ch1.png"],
        ["day1_z09.png", "day2_z10.png"],
        ["sub1/z1.png", "sub1/z2.png"],
    ],
)
def test_series_without_gap(names):
    require_series([Path(name) for name in names])


@pytest.mark.parametrize(
    "names, message",
    [
        (
            ["z1.png", "z2.png", "z4.png"],
            r"slice 3 is missing between z2.png and z4.png, expected numbers that rise by 1",
        ),
        (["z0.png", "z5.png", "z10.png", "z20.png"], r"slice 15 is missing between z10.png and z20.png"),
        (["z01.png", "z1.png"], r"z1.png: number 1 comes after 1 of z01.png"),
        (["a1_z8.png", "a1_z9.png", "a2_z1.png"], r"a2_z1.png: number 1 comes after 9 of a1_z9.png"),
        (
            ["overview.png", "z1.png", "z2.png"],
            r"overview.png: is named unlike z1.png, expected one numbered series",
        ),
    ],
)
def test_gaps_and_strangers_are_named(names, message):
    with pytest.raises(VolumeError, match=message):
        require_series([Path(name) for name in names])


# --- slices in files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "tif", "tiff"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_folder_of_slices(tmp_path, suffix, dtype):
    volume = voxels(dtype) * 257 if dtype is np.uint16 else voxels(dtype)
    folder = write_slices(tmp_path / "stack", volume, "slice{}." + suffix)
    (folder / "notes.txt").write_text("not a slice")
    (folder / "._slice9.png").write_bytes(b"a Mac's shadow")
    assert check(folder, volume) is None


def test_jpeg_slices_are_close(tmp_path):
    smooth = np.broadcast_to(np.linspace(0, 250, SHAPE[2]).astype(np.uint8), SHAPE)
    folder = write_slices(tmp_path / "stack", smooth, "{}.JPG")
    with open_volume(folder) as volume:
        assert np.abs(volume.read().astype(int) - smooth).max() < 10


def test_a_glob_chooses(tmp_path):
    folder = write_slices(tmp_path / "stack", voxels())
    write_slices(folder, 255 - voxels(), "mask{}.png")
    check(folder / "slice*.png")
    check(folder / "mask*.png", 255 - voxels())


def test_label_slices_of_any_integer(tmp_path):
    check(write_slices(tmp_path / "stack", voxels(np.int32), "{}.tif"), voxels(np.int32))
    check(write_slices(tmp_path / "long", voxels(np.uint64) << 40, "{}.tif"), voxels(np.uint64) << 40)


def test_big_endian_becomes_native(tmp_path):
    (tmp_path / "s").mkdir()
    for i, plane in enumerate(voxels(np.uint16)):
        tifffile.imwrite(tmp_path / f"s/{i}.tif", plane, byteorder=">")
    tifffile.imwrite(tmp_path / "all.tif", voxels(np.uint16), byteorder=">")
    check(tmp_path / "s", voxels(np.uint16))
    check(tmp_path / "all.tif", voxels(np.uint16))


def test_only_the_slices_of_a_box_are_decoded(tmp_path, monkeypatch):
    folder = write_slices(tmp_path / "stack", voxels())
    decoded = []
    decode = stacks.read_pixels
    monkeypatch.setattr(stacks, "read_pixels", lambda path: decoded.append(path.name) or decode(path))
    with open_volume(folder) as volume:
        volume.read(BOX)
    assert decoded == ["slice9.png", "slice10.png", "slice11.png"]


def save(path, array, mode=None):
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path)


PLANE = voxels()[0]
BAD_SLICES = {
    "unequal size": (lambda path: save(path, PLANE[:-1]), "is uint8 11 x 20 (y x) but", "12 x 20"),
    "another type": (lambda path: save(path, PLANE.astype(np.uint16)), "is uint16 12 x 20"),
    "colour": (lambda path: save(path, PLANE, "RGB"), "is a colour image (RGB)", "magick mogrify"),
    "alpha": (lambda path: save(path, PLANE, "RGBA"), "is a colour image (RGBA)"),
    "grey and alpha": (lambda path: save(path, PLANE, "LA"), "is a colour image (LA)"),
    "palette": (lambda path: save(path, PLANE, "P"), "is a colour image (P)"),
    "black and white": (lambda path: save(path, PLANE > 9), "has pixels of type bool, expected integers"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be decoded", "Restore the file"),
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
        "stores white as 0, expected black as 0",
    ),
    "several pages": (
        lambda path: tifffile.imwrite(path, voxels()),
        "holds 5 pages, expected one slice per file",
    ),
    "float": (lambda path: tifffile.imwrite(path, PLANE.astype(np.float32)), "has pixels of type float32"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-60]), "cannot be decoded"),
    "no image": (lambda path: path.write_bytes(b"II*\0 what follows is none"), "cannot be decoded"),
    "unequal size": (lambda path: tifffile.imwrite(path, PLANE[:, 1:]), "is uint8 12 x 19 (y x)"),
}


def flip_byte(path, index):
    content = bytearray(path.read_bytes())
    content[index] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize("case", BAD_SLICES)
def test_the_bad_slice_is_named(tmp_path, case):
    write, *parts = BAD_SLICES[case]
    path = write_slices(tmp_path / "stack", voxels()) / "slice10.png"
    write(path)
    refuse(path.parent, path, *parts)


@pytest.mark.parametrize("case", BAD_TIFFS)
def test_the_bad_tiff_slice_is_named(tmp_path, case):
    write, *parts = BAD_TIFFS[case]
    path = write_slices(tmp_path / "stack", voxels(), "{}.tif") / "10.tif"
    write(path)
    refuse(path.parent, path, *parts)


def test_a_slice_replaced_after_opening_is_noticed(tmp_path):
    folder = write_slices(tmp_path / "stack", voxels())
    with open_volume(folder) as volume:
        save(folder / "slice9.png", PLANE.T)
        with pytest.raises(VolumeError, match="slice9.png: is uint8 20 x 12"):
            volume.read()


def test_a_glob_without_slices(tmp_path):
    (tmp_path / "movie.avi").write_bytes(b"x")
    refuse(tmp_path / "*.png", "*.png: matches no file, expected a folder or glob of slices")
    refuse(tmp_path / "*.avi", "*.avi: holds no image, expected slices named *.png")


def test_mixed_formats_and_gaps(tmp_path):
    folder = write_slices(tmp_path / "stack", voxels())
    save(folder / "slice13.jpg", PLANE)
    refuse(folder, "slice13.jpg: is JPEG next to slice8.png, expected slices in one format")
    (folder / "slice13.jpg").unlink()
    (folder / "slice10.png").unlink()
    refuse(folder, "slice 10 is missing between slice9.png and slice11.png")


# --- multipage TIFF ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "zlib"},
        {"compression": "lzw"},
        {"imagej": True},
        {"bigtiff": True},
        {"rowsperstrip": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_multipage_tiff(tmp_path, options, dtype):
    tifffile.imwrite(tmp_path / "stack.tif", voxels(dtype), **options)
    assert check(tmp_path / "stack.tif", voxels(dtype)) is None


def test_an_imagej_stack_with_one_described_page(tmp_path):
    """As ImageJ writes stacks over 4 GB: the other slices follow without a page of their own."""
    tifffile.imwrite(
        tmp_path / "stack.tif", voxels()[0], description="ImageJ=1.54f\nimages=5\nslices=5\n", metadata=None
    )
    with open(tmp_path / "stack.tif", "r+b") as file:
        with tifffile.TiffFile(tmp_path / "stack.tif") as tiff:
            file.seek(tiff.pages.first.dataoffsets[0])
        file.write(voxels().tobytes())
    check(tmp_path / "stack.tif")


def test_refused_tiffs(tmp_path):
    tifffile.imwrite(tmp_path / "rgb.tif", np.zeros((4, 12, 20, 3), np.uint8), photometric="rgb")
    refuse(tmp_path / "rgb.tif", "rgb.tif: is a colour image")
    tifffile.imwrite(
        tmp_path / "channels.tif", np.zeros((4, 2, 12, 20), np.uint8), imagej=True, metadata={"axes": "ZCYX"}
    )
    refuse(tmp_path / "channels.tif", "channels.tif: has axes ZCYX of shape (4, 2, 12, 20), expected one channel")
    with tifffile.TiffWriter(tmp_path / "unequal.tif") as tiff:
        for height in (12, 12, 11, 12):
            tiff.write(PLANE[:height], metadata=None)
    refuse(tmp_path / "unequal.tif", "unequal.tif: holds images of unequal size or type [(3, 12, 20), (11, 20)]")


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"imagej": True}, {"metadata": None}], ids=str)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_a_truncated_tiff_is_refused_not_shortened(tmp_path, options, share):
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, voxels(np.uint16), **options)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    if options.get("imagej") and share == 0.95:
        check(path, voxels(np.uint16))  # only descriptions of later pages are cut off, which it does not need
    else:
        refuse(path, path, "cannot be decoded")


# --- real data ---------------------------------------------------------------------------------------------


def test_the_fib25_slices(shared_fib25):
    with open_volume(shared_fib25 / "raw") as volume:
        assert volume.box == Box.from_shape((250, 250, 250))
        assert volume.dtype == np.uint8
        slice_ = volume.read(Box((7, 0, 0), (8, 250, 250)))[0]
    np.testing.assert_array_equal(slice_, np.asarray(Image.open(shared_fib25 / "raw/iso.2607.png")))
