import functools
import http.server
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
import tifffile
from PIL import Image

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.sources import stacks
from ffn.sources.numbering import natural_key, require_series
from ffn.volume import Volume, open_volume

SHAPE = (5, 12, 20)
BOX = Box((1, 3, 7), (4, 9, 16))


def voxels(dtype=np.uint8):
    return np.random.default_rng(1).integers(0, 250, SHAPE).astype(dtype)


def write_slices(folder, volume, pattern="slice{}.png", start=8, step=1):
    folder.mkdir(exist_ok=True)
    for i, plane in enumerate(volume):
        path = folder / pattern.format(start + i * step)
        if path.suffix in (".tif", ".tiff"):
            tifffile.imwrite(path, plane)
        else:
            Image.fromarray(plane).save(path)
    return folder


def create_store(path, driver, shape, content=None, **spec):
    """Write an array with TensorStore, `content` in its own axis order."""
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}, **spec}
    options = {"dtype": ts.uint8, "shape": shape} if shape else {}
    store = ts.open(spec, create=True, **options).result()
    if content is not None:
        store[...] = content
    return str(path)


def create_precomputed(path, **scale):
    scale = {
        "size": SHAPE[::-1],
        "voxel_offset": [100, -20, 3],
        "resolution": [4, 4.5, 40],
        "encoding": "raw",
    } | scale
    metadata = {"data_type": "uint8", "num_channels": 1, "type": "image"}
    content = voxels().transpose()[..., None]
    return create_store(
        path, "neuroglancer_precomputed", None, content, multiscale_metadata=metadata, scale_metadata=scale
    )


def create_n5(path, **metadata):
    metadata = {"dimensions": SHAPE[::-1], "blockSize": [5, 4, 3], "dataType": "uint8"} | metadata
    return create_store(path, "n5", None, voxels().transpose(), metadata=metadata)


def check(spec, expected=None, box=None):
    """Check the whole volume and a part of it; return its voxel size."""
    expected = voxels() if expected is None else expected
    box = box or Box.from_shape(SHAPE)
    with open_volume(str(spec)) as volume:
        assert isinstance(volume, Volume)
        assert volume.box == box
        assert volume.dtype == expected.dtype
        np.testing.assert_array_equal(volume.read(), expected)
        np.testing.assert_array_equal(volume.read(BOX.shift(box.start)), expected[BOX.slices()])
        assert volume.read().dtype == expected.dtype
        with pytest.raises(VolumeError, match="is empty or outside of the volume"):
            volume.read(box.grow((0, 0, 1)))
        return volume.voxel_size_zyx_nm


def refuse(spec, *parts):
    """Check that `spec` is refused in one line that holds all `parts`."""
    with pytest.raises(VolumeError) as caught, open_volume(str(spec)) as volume:
        volume.read()
    message = str(caught.value)
    assert "\n" not in message
    for part in map(str, parts):
        assert part in message


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
        "0 as white, expected 0 as black",
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


def test_missing_sources(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "movie.avi").write_bytes(b"x")
    refuse(tmp_path / "nowhere", "nowhere: no such file or folder", "Check the path")
    refuse(tmp_path / "*.png", "*.png: no such file or folder, and as a glob it matches no file")
    refuse(tmp_path / "empty", "empty: holds no image, expected slices named *.png")
    refuse(tmp_path / "movie.avi", "movie.avi: is a single file of unknown kind, expected HDF5")
    refuse(tmp_path / "*.avi", "holds no image")


def test_mixed_formats_and_gaps(tmp_path):
    folder = write_slices(tmp_path / "stack", voxels())
    save(folder / "slice13.jpg", PLANE)
    refuse(folder, "slice13.jpg: is JPEG beside slice8.png, expected slices of one format")
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


# --- zarr, N5, precomputed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("driver, prefix", [("zarr", "zarr"), ("zarr", "zarr2"), ("zarr3", "zarr"), ("zarr3", "zarr3")])
def test_zarr_is_zyx(tmp_path, driver, prefix):
    path = create_store(tmp_path / "raw.zarr", driver, SHAPE, voxels())
    assert check(path) is None
    check(f"{prefix}://{path}")
    check(f"file://{path}")


def test_zarr_with_named_axes_goes_by_their_names(tmp_path):
    metadata = {"dimension_names": ["x", "y", "z"]}
    check(create_store(tmp_path / "raw.zarr", "zarr3", SHAPE[::-1], voxels().transpose(), metadata=metadata))


def test_zarr_with_one_time_and_channel(tmp_path):
    check(create_store(tmp_path / "raw.zarr", "zarr", (1, 1, *SHAPE), voxels()[None, None]))


@pytest.mark.parametrize("shape", [(2, *SHAPE), SHAPE[1:]])
def test_zarr_of_another_shape(tmp_path, shape):
    path = create_store(tmp_path / "raw.zarr", "zarr", shape)
    refuse(path, f"raw.zarr: has shape {shape}, expected three axes and one channel")


def test_zarr_attributes_of_funlib(tmp_path):
    path = create_store(tmp_path / "raw.zarr", "zarr", SHAPE, voxels())
    (tmp_path / "raw.zarr/.zattrs").write_text(json.dumps({"voxel_size": [40, 4, 4], "offset": [400, 0, -8]}))
    assert check(path, box=Box.from_shape(SHAPE, (10, 0, -2))) == (40, 4, 4)


@pytest.mark.parametrize("version", [2, 3])
def test_voxel_size_of_ome_zarr(tmp_path, version):
    axes = [{"name": "c", "type": "channel"}] + [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"]
    transform = {"type": "scale", "scale": [1, 0.04, 0.004, 0.0045]}
    datasets = [{"path": "s0", "coordinateTransformations": [transform]}, {"path": "s1"}]
    content = {"multiscales": [{"axes": axes, "datasets": datasets}]}
    group = tmp_path / "sample.zarr"
    path = create_store(group / "s0", "zarr" if version == 2 else "zarr3", (1, *SHAPE), voxels()[None])
    if version == 2:
        (group / ".zgroup").write_text('{"zarr_format": 2}')
        (group / ".zattrs").write_text(json.dumps(content))
    else:
        (group / "zarr.json").write_text(
            json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"ome": content}})
        )
    assert check(path) == pytest.approx((40, 4, 4.5))
    refuse(group, "sample.zarr: cannot be opened", "Name one of those inside: s0")


def test_n5_is_xyz(tmp_path):
    path = create_n5(tmp_path / "raw.n5", resolution=[4, 4.5, 0.04], units=["nm", "nm", "um"])
    assert check(path) == pytest.approx((40, 4.5, 4))
    check(f"n5://{path}")
    assert check(create_n5(tmp_path / "container.n5/volumes/raw")) is None


def test_precomputed_keeps_offset_and_voxel_size(tmp_path):
    path = create_precomputed(tmp_path / "image")
    box = Box.from_shape(SHAPE, (3, -20, 100))
    assert check(path, box=box) == (40, 4.5, 4)
    assert check(f"precomputed://{path}", box=box) == (40, 4.5, 4)
    assert check(f"precomputed://file://{path}", box=box) == (40, 4.5, 4)


@pytest.fixture
def server(tmp_path):
    """Address that serves `tmp_path`, and the paths asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("prefix", ["", "precomputed://"])
def test_precomputed_over_http_fetches_only_what_a_box_needs(tmp_path, server, prefix):
    address, asked = server
    create_precomputed(tmp_path / "image", chunk_size=[5, 4, 2])
    with open_volume(f"{prefix}{address}/image") as volume:
        asked.clear()
        found = volume.read(volume.box.shift((0, 0, 0)).intersect(Box((4, -20, 100), (5, -16, 105))))
    np.testing.assert_array_equal(found, voxels()[1:2, :4, :5])
    assert len({path for path in asked}) == 1


def test_a_url_without_volume(server):
    address, _ = server
    refuse(
        f"precomputed://{address}/nothing",
        f"precomputed://{address}/nothing: cannot be opened",
        "Check path and format",
    )


def test_gzipped_chunks_are_refused_instead_of_read_as_zeros(tmp_path):
    path = Path(create_precomputed(tmp_path / "image"))
    chunk = next(p for p in path.rglob("*_*-*_*"))
    chunk.rename(f"{chunk}.gz")
    refuse(path, f"{chunk}.gz: is a gzipped chunk", "would read as zeros")


@pytest.mark.parametrize(
    "prefix, content, message",
    [
        ("", {"info": "{ broken"}, "Invalid JSON"),
        ("", {".zgroup": "{}"}, "Failed to detect format"),
        ("n5://", {".zarray": "{}"}, "attributes.json"),
        ("precomputed://", {}, "info"),
        ("zarr://", {}, "Failed to detect format"),
    ],
)
def test_folders_that_hold_no_array(tmp_path, prefix, content, message):
    folder = tmp_path / "volume"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    refuse(
        f"{prefix}{folder}",
        f"{prefix}{folder}: cannot be opened",
        message,
        "expected one array of zarr, N5 or precomputed",
    )


def test_a_damaged_chunk_is_an_error(tmp_path):
    path = Path(create_n5(tmp_path / "raw.n5", compression={"type": "gzip"}))
    chunk = path / "0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    refuse(path, "raw.n5: box", "cannot be read", "Is a chunk damaged?")


# --- real data ---------------------------------------------------------------------------------------------


def test_the_fib25_slices(shared_fib25):
    with open_volume(shared_fib25 / "raw") as volume:
        assert volume.box == Box.from_shape((250, 250, 250))
        assert volume.dtype == np.uint8
        slice_ = volume.read(Box((7, 0, 0), (8, 250, 250)))[0]
    np.testing.assert_array_equal(slice_, np.asarray(Image.open(shared_fib25 / "raw/iso.2607.png")))
