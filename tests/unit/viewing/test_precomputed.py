"""cloud-volume reads volumes as they were written."""

import json

import numpy as np
import pytest
import tensorstore as ts

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.viewing import mips, precomputed
from ffn.viewing.mips import plan_scales
from ffn.viewing.precomputed import LABELS, image_encoding

from ..volumes import read_scale
from .written import write_volume

ODD = Box((13, -7, 2601), (13 + 70, -7 + 90, 2601 + 150))
SIZE_NM = (40.0, 8.5, 8.5)


def write(path, box, voxels, encoding):
    write_volume(path, encoding, plan_scales(box, SIZE_NM), lambda block: voxels[block.slices(box.start)])


@pytest.fixture
def read_back(cloud_volume):
    def read(path, mip=0):
        volume = cloud_volume(f"file://{path}", mip=mip, progress=False, fill_missing=False)
        return volume, np.asarray(volume[:])[..., 0].T

    return read


def labels_like(box):
    rng = np.random.default_rng(0)
    small = rng.integers(0, 2**63, [-(-n // 9) for n in box.shape], dtype=np.uint64)
    z, y, x = box.shape
    return small.repeat(9, 0).repeat(9, 1).repeat(9, 2)[:z, :y, :x]


def test_labels_are_equal_at_an_odd_offset(tmp_path, read_back):
    voxels = labels_like(ODD)
    write(tmp_path / "labels", ODD, voxels, LABELS)
    volume, found = read_back(tmp_path / "labels")
    assert found.dtype == np.uint64 and np.array_equal(found, voxels)
    assert volume.resolution.tolist() == [8.5, 8.5, 40]
    assert volume.voxel_offset.tolist() == [2601, -7, 13]


@pytest.mark.parametrize("dtype, wanted", [(np.uint8, "png"), (np.uint16, "png"), (np.uint16, "jpeg")])
def test_images_that_are_not_jpeg_are_lossless(tmp_path, read_back, dtype, wanted):
    box = Box((3, 0, 5), (33, 50, 165))
    voxels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, box.shape, dtype)
    write(tmp_path / "image", box, voxels, image_encoding(voxels.dtype, wanted, "a.h5:raw"))
    volume, found = read_back(tmp_path / "image")
    assert volume.dtype == found.dtype == dtype
    assert np.array_equal(found, voxels)


def test_jpeg_images_are_close_and_smaller(tmp_path, read_back):
    box = Box.from_shape((40, 70, 80))
    ramp = np.add.outer(np.arange(40), np.add.outer(np.arange(70), np.arange(80)))
    voxels = (ramp % 256).clip(40, 200).astype(np.uint8)
    write(tmp_path / "image", box, voxels, image_encoding(voxels.dtype, "jpeg", "a.h5:raw"))
    difference = read_back(tmp_path / "image")[1].astype(int) - voxels
    assert 0 < np.abs(difference).mean() < 4
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.shard")) < voxels.nbytes / 3


def test_mips_make_voxels_more_isotropic_down_to_one_chunk():
    scales = plan_scales(Box((1, 3, 5), (101, 303, 405)), (40.0, 8.0, 8.0))
    assert [s.factors_zyx for s in scales] == [(1, 1, 1), (1, 2, 2), (1, 2, 2), (2, 2, 2)]
    assert [s.voxel_size_zyx_nm for s in scales][2:] == [(40, 32, 32), (80, 64, 64)]
    assert scales[1].box == Box((1, 1, 2), (101, 152, 203))
    assert all(n <= 64 for n in scales[-1].box.shape) and any(n > 64 for n in scales[-2].box.shape)


def test_mips_are_modes_and_means_of_the_finer_voxels(tmp_path, read_back):
    """Mips are computed voxel by voxel for the factors 1, 2, 2 and an odd offset in y and x."""
    box = Box((4, 3, 5), (8, 3 + 13, 5 + 80))
    voxels = np.random.default_rng(1).integers(0, 3, box.shape, dtype=np.uint64)
    write(tmp_path / "labels", box, voxels, LABELS)
    grey = (voxels * 50).astype(np.uint8)
    write(tmp_path / "image", box, grey, image_encoding(grey.dtype, "png", "a.h5:raw"))
    volume, modes = read_back(tmp_path / "labels", mip=1)
    means = read_scale(tmp_path / "image", 1)
    assert volume.voxel_offset.tolist() == [2, 1, 4] and volume.resolution.tolist() == [17, 17, 40]
    for z, y, x in np.ndindex(modes.shape):
        rows, columns = slice(max(0, 2 * y - 1), 2 * y + 1), slice(max(0, 2 * x - 1), 2 * x + 1)
        assert modes[z, y, x] == np.bincount(voxels[z, rows, columns].ravel().astype(int)).argmax()
        assert abs(means[z, y, x] - grey[z, rows, columns].mean()) <= 0.5


def test_many_shards_are_written_one_by_one(tmp_path, read_back, monkeypatch):
    """With shards of eight chunks, no read covers more, and together they cover everything once."""
    monkeypatch.setattr(precomputed, "SHARD_BYTES", 8 * 64**3 * 8)
    box = Box((7, 0, -9), (7 + 70, 150, -9 + 260))
    voxels, reads = labels_like(box), []

    def read(block):
        reads.append(block)
        return voxels[block.slices(box.start)]

    write_volume(tmp_path / "labels", LABELS, plan_scales(box, (10.0, 10.0, 10.0)), read)
    assert max(block.num_voxels for block in reads) <= 8 * 64**3
    assert sum(block.num_voxels for block in reads) == box.num_voxels
    info = json.loads((tmp_path / "labels/info").read_text())
    files = list((tmp_path / "labels" / info["scales"][0]["key"]).iterdir())
    assert len(files) == len(reads) > 2
    assert np.array_equal(read_back(tmp_path / "labels")[1], voxels)
    assert np.array_equal(read_scale(tmp_path / "labels", 0), voxels)


def test_shard_size_does_not_change_the_mips(tmp_path, monkeypatch):
    voxels = labels_like(ODD)
    write(tmp_path / "one", ODD, voxels, LABELS)
    monkeypatch.setattr(precomputed, "SHARD_BYTES", 64**3 * 8)
    monkeypatch.setattr(mips, "PIECE_ZYX", (64, 64, 64))
    write(tmp_path / "many", ODD, voxels, LABELS)
    for mip in range(len(plan_scales(ODD, SIZE_NM))):
        assert np.array_equal(read_scale(tmp_path / "one", mip), read_scale(tmp_path / "many", mip))


@pytest.mark.parametrize("seed", range(6))
def test_mips_do_not_depend_on_how_they_are_cut(tmp_path, monkeypatch, seed):
    """Compare random boxes, voxel sizes, shards and pieces with the mips of the whole array in memory."""
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(20, 170, 3).tolist()), tuple(rng.integers(-70, 70, 3).tolist()))
    size_nm = tuple(rng.choice([8.0, 16.0, 40.0], 3).tolist())
    monkeypatch.setattr(precomputed, "SHARD_BYTES", 64**3 * 8 * 2 ** int(rng.integers(0, 4)))
    monkeypatch.setattr(mips, "PIECE_ZYX", tuple(rng.integers(5, 90, 3).tolist()))
    labels = rng.integers(0, 3, box.shape, np.uint64)
    grey = rng.integers(0, 256, box.shape, np.uint8)
    image, scales = image_encoding(grey.dtype, "png", "a"), plan_scales(box, size_nm)
    for name, voxels, encoding in (("labels", labels, LABELS), ("image", grey, image)):
        path, whole, method = tmp_path / name, voxels, encoding.downsample
        write_volume(
            path, encoding, scales, lambda b, v=voxels: v[b.slices(box.start)], threads=int(rng.integers(1, 4))
        )
        view = ts.array(whole)[ts.d[:].translate_to[box.start]]
        for mip, scale in enumerate(scales):
            if mip:
                whole = ts.downsample(view, scale.factors_zyx, method).read().result()
                view = ts.array(whole)[ts.d[:].translate_to[scale.box.start]]
            assert np.array_equal(read_scale(path, mip), whole), f"{name}, mip {mip}"


def test_nothing_depends_on_a_server_that_unpacks_gzip_files(tmp_path):
    write(tmp_path / "labels", ODD, labels_like(ODD), LABELS)
    assert {f.suffix or f.name for f in tmp_path.rglob("*") if f.is_file()} == {".shard", "info"}


def test_other_types_are_not_images():
    with pytest.raises(ExportError, match="a.h5:raw: has type float32, expected an image of uint8 or uint16"):
        image_encoding(np.dtype(np.float32), "jpeg", "a.h5:raw")
