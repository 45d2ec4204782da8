from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.foreign.stacks import in_series
from ffn.io.open import open_volume

from .readers import SHAPE, check, refuse, voxels

PLANE = voxels()[0]


def save(path, plane):
    if path.suffix in (".tif", ".tiff"):
        tifffile.imwrite(path, plane)
    else:
        Image.fromarray(plane).save(path)


def write_slices(folder, volume, pattern="slice{}.png", start=8, step=1):
    folder.mkdir(exist_ok=True)
    for i, plane in enumerate(volume):
        save(folder / pattern.format(start + i * step), plane)
    return folder


@pytest.mark.parametrize("suffix", ["png", "tif", "tiff"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_folder_of_slices_is_a_volume(tmp_path, suffix, dtype):
    volume = voxels(dtype) * 257 if dtype is np.uint16 else voxels(dtype)
    folder = write_slices(tmp_path / "stack", volume, "slice{}." + suffix)
    (folder / "notes.txt").write_text("not a slice")
    (folder / "._slice9.png").write_bytes(b"metadata of a Mac")
    assert check(folder, volume) is None


def test_jpeg_and_big_endian_slices_are_read(tmp_path):
    smooth = np.broadcast_to(np.linspace(0, 250, SHAPE[2]).astype(np.uint8), SHAPE)
    folder = write_slices(tmp_path / "stack", smooth, "{}.JPG")
    with open_volume(folder) as volume:
        assert np.abs(volume.read().astype(int) - smooth).max() < 10
    (tmp_path / "s").mkdir()
    for i, plane in enumerate(voxels(np.uint16)):
        tifffile.imwrite(tmp_path / f"s/{i}.tif", plane, byteorder=">")
    tifffile.imwrite(tmp_path / "all.tif", voxels(np.uint16), byteorder=">")
    check(tmp_path / "s", voxels(np.uint16))
    check(tmp_path / "all.tif", voxels(np.uint16))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("plane", [PLANE[:-1], PLANE.astype(np.uint16)])
def test_a_slice_unlike_the_first_is_named(tmp_path, suffix, plane):
    path = write_slices(tmp_path / "stack", voxels(), "slice{}" + suffix) / f"slice10{suffix}"
    save(path, plane)
    refuse(path.parent, f"{path}: is {plane.dtype} {plane.shape[0]} x 20")


def test_gaps_and_mixed_formats_and_no_slices_are_refused(tmp_path):
    (tmp_path / "movie.avi").write_bytes(b"x")
    refuse(tmp_path / "*.png", "*.png: ")
    refuse(tmp_path / "*.avi", "*.avi: ")
    folder = write_slices(tmp_path / "stack", voxels())
    save(folder / "slice13.jpg", PLANE)
    refuse(folder, "slice13.jpg: is next to slice10.png")
    (folder / "slice13.jpg").unlink()
    (folder / "slice10.png").unlink()
    refuse(folder, "slice 10 is missing between slice9.png and slice11.png")


def test_a_slice_behind_a_broken_link_is_named(tmp_path):
    folder = write_slices(tmp_path / "stack", voxels())
    (folder / "slice12.png").unlink()
    (folder / "slice12.png").symlink_to("/mnt/archive/slice12.png")
    for spec in (folder, folder / "*.png"):
        refuse(spec, folder / "slice12.png", "/mnt/archive/slice12.png")


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [("[2021] EM", "[2021] EM/*.png"), ("[1]/raw?", "[1]/r*/s*[0-9].png"), ("d1", "d[0-9]/*"), ("e", "e/s[1]*")],
)
def test_brackets_in_names_are_no_pattern(tmp_path, folder, pattern):
    (tmp_path / folder).parent.mkdir(exist_ok=True)
    write_slices(tmp_path / folder, voxels(), "s[1]_{}.png" if folder == "e" else "s{}.png")
    check(tmp_path / pattern)


@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "zlib"}, {"compression": "lzw"}, {"imagej": True}, {"bigtiff": True}, {"rowsperstrip": 5}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_multipage_tiff_is_a_volume(tmp_path, options, dtype):
    tifffile.imwrite(tmp_path / "stack.tif", voxels(dtype), **options)
    assert check(tmp_path / "stack.tif", voxels(dtype)) is None


def test_compressed_and_opaque_tiffs_are_read_by_several_threads(tmp_path):
    volume = np.random.default_rng(0).integers(0, 250, (40, 100, 100), np.uint8)
    tifffile.imwrite(tmp_path / "all.tif", volume, compression="zlib", photometric="minisblack")
    boxes = [Box((z, 0, 0), (z + 10, 100, 100)) for z in range(0, 30, 2)] * 4
    with open_volume(tmp_path / "all.tif") as opened, ThreadPoolExecutor(4) as pool:
        for box, found in zip(boxes, pool.map(opened.read, boxes), strict=True):
            np.testing.assert_array_equal(found, volume[box.slices()])
    both = np.stack([voxels(), np.full(SHAPE, 255, np.uint8)], -1)
    options = {"photometric": "minisblack", "extrasamples": ["unassalpha"], "metadata": None}
    tifffile.imwrite(tmp_path / "stack.tif", both, **options)
    check(tmp_path / "stack.tif")


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"byteorder": ">"}, {"bigtiff": True}], ids=str)
def test_slices_that_were_appended_one_by_one_are_read(tmp_path, options):
    """Tifffile describes each as a series of its own."""
    for plane in voxels(np.uint16):
        tifffile.imwrite(tmp_path / "stack.tif", plane, append=True, **options)
    check(tmp_path / "stack.tif", voxels(np.uint16))
    tifffile.imwrite(tmp_path / "stack.tif", PLANE[1:], append=True)
    refuse(tmp_path / "stack.tif", "5 of (12, 20) uint16, 1 of (11, 20) uint8")


def test_an_imagej_stack_that_describes_one_page_is_read(tmp_path):
    """ImageJ writes stacks over 4 GB this way: the other slices follow without a page."""
    description = "ImageJ=1.54f\nimages=5\nslices=5\n"
    tifffile.imwrite(tmp_path / "stack.tif", PLANE, description=description, metadata=None)
    with open(tmp_path / "stack.tif", "r+b") as file:
        with tifffile.TiffFile(tmp_path / "stack.tif") as tiff:
            file.seek(tiff.pages.first.dataoffsets[0])
        file.write(voxels().tobytes())
    check(tmp_path / "stack.tif")


def test_one_file_of_an_ome_set_is_read_by_its_pages(tmp_path):
    """Its metadata describe the set: all channels, of which this file has one."""
    pixels = f'<Pixels SizeX="20" SizeY="12" SizeZ="{len(voxels())}" SizeC="2" SizeT="1" DimensionOrder="XYZCT"/>'
    ome = f'<?xml version="1.0"?><OME><Image>{pixels}</Image></OME>'
    tifffile.imwrite(tmp_path / "stack.ome.tif", voxels(), description=ome, metadata=None)
    check(tmp_path / "stack.ome.tif")


def test_a_tiff_that_is_not_one_grey_stack_is_refused(tmp_path):
    colours = np.zeros((4, 12, 20, 3), np.uint8)
    colours[3, 7, 9, 1] = 5
    tifffile.imwrite(tmp_path / "rgb.tif", colours, photometric="rgb")
    refuse(tmp_path / "rgb.tif", "rgb.tif: ", "0, 5, 0", "7, 9")
    options = {"imagej": True, "metadata": {"axes": "ZCYX"}}
    tifffile.imwrite(tmp_path / "channels.tif", np.zeros((4, 2, 12, 20), np.uint8), **options)
    refuse(tmp_path / "channels.tif", "channels.tif: has axes ZCYX of shape (4, 2, 12, 20)")
    tifffile.imwrite(tmp_path / "a.ome.tif", np.zeros((2, 4, 12, 20), np.uint8), metadata={"axes": "CZYX"})
    refuse(tmp_path / "a.ome.tif", "a.ome.tif: has 4 along z and 2 along c")
    with tifffile.TiffWriter(tmp_path / "unequal.tif") as tiff:
        for height in (12, 12, 11, 12):
            tiff.write(PLANE[:height], metadata=None)
    refuse(tmp_path / "unequal.tif", "unequal.tif: ", "3 of (12, 20) uint8, 1 of (11, 20) uint8")


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("num_sections", [3, 4])
def test_sections_that_tifffile_marks_as_rgb_are_read(tmp_path, num_sections, compression):
    """It does so with 3 or 4 of them, unless it is told their photometric; planes of other programs are colours."""
    volume = voxels(np.uint16)[-num_sections:]
    options = {"photometric": "rgb", "planarconfig": "separate", "compression": compression}
    for given in (volume, volume[None]):
        tifffile.imwrite(tmp_path / "stack.tif", given, **options)
        with open_volume(tmp_path / "stack.tif") as opened:
            for read in (opened.as_image().read, opened.as_labels().read):
                np.testing.assert_array_equal(read(), volume)
                np.testing.assert_array_equal(read(Box((1, 3, 7), (3, 9, 16))), volume[1:3, 3:9, 7:16])
    tifffile.imwrite(tmp_path / "rgb.tif", volume[:3], metadata=None, **options)
    refuse(tmp_path / "rgb.tif", "red, green and blue")
    tifffile.imwrite(tmp_path / "ids.tif", voxels()[:3], **options)
    with open_volume(tmp_path / "ids.tif") as opened:
        red, green, blue = voxels(np.uint32)[:3]
        np.testing.assert_array_equal(opened.as_labels("rgb").read(), [red << 16 | green << 8 | blue])


@pytest.mark.parametrize("order", ["first", "last", "each"])
def test_previews_and_pages_that_differ_in_compression_are_no_obstacle(tmp_path, order):
    with tifffile.TiffWriter(tmp_path / "stack.tif") as tiff:
        for z, plane in enumerate(voxels()):
            if order == "each" or z == (0 if order == "first" else 4):
                tiff.write(plane[::4, ::4], subfiletype=1, metadata=None)
            tiff.write(plane, compression="zlib" if z % 2 else None, metadata=None)
    check(tmp_path / "stack.tif")


@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"imagej": True}, {"metadata": None}], ids=str)
@pytest.mark.parametrize("share", [0.02, 0.95])
def test_a_truncated_tiff_is_refused_not_shortened(tmp_path, options, share):
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, voxels(np.uint16), **options)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    if options.get("imagej") and share == 0.95:
        check(path, voxels(np.uint16))  # this cuts off only the descriptions of later pages, which are not needed
    else:
        refuse(path, path, "cannot be read")


@pytest.mark.parametrize(
    "names",
    [
        ["a.png"],
        ["a.png", "b.png"],
        ["7.png", "8.png"],
        ["s2.png", "s10.png", "s18.png"],
        ["z0000.tif", "z0040.tif", "z0080.tif"],
        ["run3_z9_ch1.png", "run3_z10_ch1.png"],
        ["day1_z09.png", "day2_z10.png"],
        ["sub1/z1.png", "sub1/z2.png"],
        ["s0_z=0.9500um.tif", "s1_z=1.0000um.tif", "s2_z=1.0500um.tif"],
        ["z=-0.5um_t3.tif", "z=-0.25um_t9.tif", "z=0um_t7.tif", "z=0.25um_t8.tif"],
        ["z=0.0333.tif", "z=0.0667.tif", "z=0.1000.tif", "z=0.1333.tif"],
        ["1.8.png", "1.9.png", "1.10.png"],
        ["s0_z=1.0um.tif", "s1_z=0.9um.tif", "s2_z=0.8um.tif"],
        ["30-11_s7.png", "31-11_s8.png", "01-12_s9.png", "03-12_s10.png"],
    ],
)
def test_a_complete_series_is_ordered_whatever_else_its_names_hold(names):
    assert [str(path) for path in in_series([Path(name) for name in sorted(names)])] == names


@pytest.mark.parametrize(
    "names, message",
    [
        (["z1.png", "z2.png", "z4.png"], r"slice 3 is missing between z2.png and z4.png"),
        (["z0.png", "z5.png", "z10.png", "z20.png"], r"slice 15 is missing between z10.png and z20.png"),
        (["s0_z=0.0.png", "s2_z=0.2.png", "s3_z=0.3.png"], "slice 1 is missing"),
        (["z01.png", "z1.png"], r"z1.png: number 1 comes after 1 of z01.png"),
        (["a1_z8.png", "a1_z9.png", "a2_z1.png"], r"a2_z1.png: number 1 comes after 9 of a1_z9.png"),
        (["overview.png", "z1.png", "z2.png"], r"overview.png: is named unlike z1.png"),
    ],
)
def test_the_error_for_a_gap_or_an_odd_name_names_the_files(names, message):
    with pytest.raises(VolumeError, match=message):
        in_series([Path(name) for name in names])
