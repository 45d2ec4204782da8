import json
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.foreign import chunked
from ffn.io.open import open_mip, open_volume

from ....servers import serving_files
from .readers import SHAPE, check, refuse, voxels


def create_store(path, driver, shape, content=None, **spec):
    """Write an array with TensorStore, `content` in its own axis order."""
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}, **spec}
    options = {"dtype": ts.uint8, "shape": shape} if shape else {}
    store = ts.open(spec, create=True, **options).result()
    if content is not None:
        store[...] = content
    return str(path)


def create_precomputed(path, **scale):
    scale = {"size": SHAPE[::-1], "voxel_offset": [100, -20, 3], "resolution": [4, 4.5, 40], "encoding": "raw"} | scale
    metadata = {"data_type": "uint8", "num_channels": 1, "type": "image"}
    described = {"multiscale_metadata": metadata, "scale_metadata": scale}
    return create_store(path, "neuroglancer_precomputed", None, voxels().transpose()[..., None], **described)


def create_n5(path, **metadata):
    metadata = {"dimensions": SHAPE[::-1], "blockSize": [5, 4, 3], "dataType": "uint8"} | metadata
    return create_store(path, "n5", None, voxels().transpose(), metadata=metadata)


@pytest.mark.parametrize("driver, prefix", [("zarr", "zarr"), ("zarr", "zarr2"), ("zarr3", "zarr"), ("zarr3", "zarr3")])
def test_zarr_is_zyx(tmp_path, driver, prefix):
    path = create_store(tmp_path / "raw.zarr", driver, SHAPE, voxels())
    assert check(path) is None
    check(f"{prefix}://{path}")
    check(f"file://{path}")


def test_units_of_dimensions_are_voxel_sizes(tmp_path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/raw.zarr"}}
    ts.open(spec, shape=SHAPE, dtype="uint8", create=True, dimension_units=["30nm", "8nm", "0.01um"]).result()[...] = 1
    with open_volume(f"{tmp_path}/raw.zarr") as volume:
        assert volume.voxel_size_zyx_nm == (30, 8, 10)


def test_n5_is_xyz(tmp_path):
    path = create_n5(tmp_path / "raw.n5", resolution=[4, 4.5, 0.04], units=["nm", "nm", "um"])
    assert check(path) == pytest.approx((40, 4.5, 4))
    check(f"n5://{path}")
    assert check(create_n5(tmp_path / "container.n5/volumes/raw")) is None


def placed(scale, translate):
    """Attributes with a place as COSEM writes them."""
    return {"transform": {"axes": [*"zyx"], "scale": scale, "translate": translate, "units": ["nm"] * 3}}


FIJI, HALF = {"pixelResolution": {"dimensions": [4, 4.5, 40], "unit": "nm"}}, {"downsamplingFactors": [2, 2, 1]}


@pytest.mark.parametrize(
    "attributes, size, start",
    [
        (FIJI, (40, 4.5, 4), (0, 0, 0)),
        ({"pixelResolution": {"dimensions": [0.004, 0.0045, 0.04], "unit": "um"}}, (40, 4.5, 4), (0, 0, 0)),
        (FIJI | HALF, (40, 9, 8), (0, 0, 0)),
        ({"pixelResolution": [4, 4.5, 40]}, None, (0, 0, 0)),  # in a unit that nobody knows
        ({"resolution": [4, 4.5, 40], "offset": [400, -9, 80]}, (40, 4.5, 4), (2, -2, 100)),  # Paintera
        (placed([40, 4.5, 4], [80, -9, 400]), (40, 4.5, 4), (2, -2, 100)),
    ],
    ids=["Fiji", "micrometres", "downsampled", "no unit", "Paintera", "COSEM"],
)
def test_n5_has_the_place_that_its_attributes_say(tmp_path, attributes, size, start):
    path = create_n5(tmp_path / "raw.n5", **attributes)
    found = check(path, box=Box.from_shape(SHAPE, start))
    assert found == (None if size is None else pytest.approx(size))


# The centre of the first voxel of a mip lies between those of the finer ones.
COSEM = [placed([40, 4 * n, 4 * n], [80, 2 * (n - 1), 160 + 2 * (n - 1)]) for n in (1, 2)]


@pytest.mark.parametrize(
    "group, datasets, start",
    [
        ({"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}}, ({}, HALF), (0, 0)),
        ({"resolution": [4, 4, 40], "offset": [160, 0, 80]}, ({}, HALF), (40, 20)),
        ({}, ({"resolution": [4, 4, 40]}, {"resolution": [8, 8, 40]} | HALF), (0, 0)),
        ({"multiscales": [{"datasets": [{"path": f"s{n}"} | COSEM[n] for n in (0, 1)]}]}, ({}, {}), (40, 20)),
        ({}, COSEM, (40, 20)),
    ],
    ids=["Fiji", "Paintera", "each its own", "COSEM group", "COSEM"],
)
def test_a_group_of_n5_is_an_image(tmp_path, group, datasets, start):
    for mip, attributes in enumerate(datasets):
        create_n5(tmp_path / f"raw.n5/s{mip}", **attributes)
    (tmp_path / "raw.n5/attributes.json").write_text(json.dumps(group or {"n5": "2.5.1"}))
    for mip, size in enumerate([(40, 4, 4), (40, 8, 8)]):
        with open_mip(tmp_path / "raw.n5", size_zyx_nm=size) as volume:
            assert volume.voxel_size_zyx_nm == size
            assert volume.box.start[2] == start[mip]
            np.testing.assert_array_equal(volume.read(), voxels())
        with open_volume(tmp_path / f"raw.n5/s{mip}") as volume:
            assert (volume.voxel_size_zyx_nm, volume.box.start[2]) == (size, start[mip])


@pytest.mark.parametrize("choice", [{"mip": 1}, {"size_zyx_nm": (40, 9, 8)}])
def test_precomputed_is_read_at_any_mip(tmp_path, cloud_volume, choice):
    """cloud-volume writes, with mips that are no whole multiples of the first."""
    place = {"resolution": [4, 4.5, 40], "voxel_offset": [7, -20, 3], "volume_size": SHAPE[::-1]}
    info = cloud_volume.create_new_info(1, "image", "uint8", "raw", **place)
    volume = cloud_volume(f"file://{tmp_path}/image", info=info, mip=0, compress=False, progress=False)
    volume.add_scale((2, 2, 1))
    volume.commit_info()
    coarse = cloud_volume(f"file://{tmp_path}/image", mip=1, compress=False, progress=False)
    expected = voxels()[:, :6, :10]
    coarse[:] = expected.transpose()[..., None]
    for spec in (
        f"{tmp_path}/image",
        f"precomputed://{tmp_path}/image",
        f"file://{tmp_path}/image|neuroglancer-precomputed:",
    ):
        with open_mip(spec, **choice) as found:
            assert found.voxel_size_zyx_nm == (40, 9, 8)
            assert found.box == Box.from_shape((5, 6, 10), (3, -10, 3))
            np.testing.assert_array_equal(found.read(), expected)


@pytest.fixture
def server(tmp_path):
    """Address of a server for `tmp_path`, and the paths that were requested."""
    asked = []
    with serving_files(tmp_path, asked) as address:
        yield address, asked


@pytest.mark.parametrize("prefix", ["", "precomputed://"])
def test_precomputed_over_http_fetches_only_what_a_box_needs(tmp_path, server, prefix):
    address, asked = server
    create_precomputed(tmp_path / "image", chunk_size=[5, 4, 2])
    with open_volume(f"{prefix}{address}/image") as volume:
        asked.clear()
        found = volume.read(volume.box.shift((0, 0, 0)).intersect(Box((4, -20, 100), (5, -16, 105))))
    np.testing.assert_array_equal(found, voxels()[1:2, :4, :5])
    assert len({path for path in asked}) == 1


@pytest.mark.parametrize("suffix", [".gz", ".br", ".zstd"])
def test_compressed_files_are_refused_instead_of_read_as_zeros(tmp_path, suffix):
    path = Path(create_precomputed(tmp_path / "image"))
    chunk = next(p for p in path.rglob("*_*-*_*"))
    chunk.rename(f"{chunk}{suffix}")
    refuse(path, f"{path}: ", f"{chunk.name}{suffix}", "gunzip")


@pytest.mark.parametrize(
    "attributes",
    [
        {"pixelResolution": [4, 0, 40]},
        {"resolution": [4, 4, 40], "units": ["nm", "nm"]},
        {"transform": {"axes": "zyx"}},
        {"transform": {"axes": ["z", "y", "x"], "scale": [0, 4, 4], "translate": [0, 0, 0]}},
    ],
)
def test_damaged_attributes_of_n5_are_refused(tmp_path, attributes):
    path = tmp_path / "a.n5"
    path.mkdir()
    array = {"dimensions": [20, 12, 5], "blockSize": [20, 12, 5], "dataType": "uint8", "compression": {"type": "raw"}}
    (path / "attributes.json").write_text(json.dumps({**array, **attributes}))
    refuse(path, f"{path}: ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda info: info.update(scales=[3]), ()),
        (lambda info: info.update(scales=[{"resolution": [4, 4, 0]}]), ()),
        (lambda info: info["scales"][0].update(voxel_offset=None), ()),
        (lambda info: info["scales"][0].update(encoding="compresso"), ("compresso",)),
        (lambda info: info["scales"][0].update(key="../../.."), ("../../..",)),
    ],
)
def test_an_encoding_or_place_that_cannot_be_read_is_named(tmp_path, change, named):
    path = Path(create_precomputed(tmp_path / "image"))
    info = json.loads((path / "info").read_text())
    change(info)
    (path / "info").write_text(json.dumps(info))
    refuse(path, f"{path}: ", *named)


@pytest.mark.parametrize("change", [{"filters": [{"id": "delta"}]}, {"compressor": {"id": "lzma"}}])
def test_unknown_filters_and_codecs_are_named(tmp_path, change):
    path = Path(create_store(tmp_path / "raw.zarr", "zarr", SHAPE, voxels()))
    (path / ".zarray").write_text(json.dumps(json.loads((path / ".zarray").read_text()) | change))
    refuse(path, f"{path}: ", "delta" if "filters" in change else "lzma")


def test_archives_and_label_multisets_are_named(tmp_path):
    (tmp_path / "raw.zarr.zip").write_bytes(b"PK")
    refuse(tmp_path / "raw.zarr.zip", "raw.zarr.zip: is an archive")
    path = create_n5(tmp_path / "labels.n5")
    attributes = json.loads((tmp_path / "labels.n5/attributes.json").read_text())
    (tmp_path / "labels.n5/attributes.json").write_text(json.dumps({**attributes, "isLabelMultiset": True}))
    with pytest.raises(VolumeError, match="labels.n5: .*paintera-convert"), open_volume(path):
        pass


def test_chunks_larger_than_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chunked, "memory_mb", lambda: 1)
    size = [128] * 3
    spec = {"chunks": size, "compressor": None}  # whole, although the array is smaller
    refuse(create_store(tmp_path / "raw.zarr", "zarr", SHAPE, metadata=spec), "2 MB", "1 MB")
    spec = {"dimensions": size, "blockSize": size, "dataType": "uint8"}
    refuse(create_store(tmp_path / "raw.n5", "n5", None, metadata=spec), "2 MB")
    check(create_n5(tmp_path / "clipped.n5", blockSize=size))


@pytest.mark.parametrize(("dtype", "compression"), [(np.uint8, "raw"), (np.uint64, "gzip"), (np.int32, "blosc")])
def test_axes_and_big_endian_numbers_are_read(tmp_path, dtype, compression):
    """z5py turns the axes z, y, x of NumPy into the x, y, z of N5, which stores the high byte first."""
    z5py = pytest.importorskip("z5py")
    array = voxels(dtype) * np.array(1 if dtype is np.uint8 else 100, dtype)
    with z5py.File(f"{tmp_path}/a.n5", "w", use_zarr_format=False) as file:
        file.create_dataset("volumes/raw", data=array, chunks=(2, 5, 7), compression=compression)
    assert check(f"{tmp_path}/a.n5/volumes/raw", array) is None
