"""Volumes with their mips, as cloud-volume reads them."""

import numpy as np
import pytest
import tensorstore as ts

from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.viewing import precomputed, shards
from ffn.viewing.precomputed import LABELS, contrast, image_encoding, plan_scales
from ffn.viewing.shards import order_in_shards, plan_shards, shard_path, shards_of, write_shard

from ..volumes import read_scale, write
from .conftest import write_volume

ODD = Box((13, -7, 2601), (13 + 70, -7 + 90, 2601 + 150))
SIZE_NM = (40.0, 8.5, 8.5)


def write_precomputed(path, box, voxels, encoding, size_nm=SIZE_NM):
    write_volume(path, encoding, plan_scales(box, size_nm), lambda block: voxels[block.slices(box.start)])


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


@pytest.mark.parametrize("dtype, wanted", [(np.uint8, "png"), (np.uint16, "png"), (np.uint16, "jpeg")])
def test_images_that_are_not_jpeg_are_lossless(tmp_path, read_back, dtype, wanted):
    box = Box((3, 0, 5), (33, 50, 165))
    voxels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, box.shape, dtype)
    write_precomputed(tmp_path / "image", box, voxels, image_encoding(voxels.dtype, wanted, "a.h5:raw"))
    volume, found = read_back(tmp_path / "image")
    assert volume.dtype == found.dtype == dtype
    assert np.array_equal(found, voxels)
    files = {f.suffix or f.name for f in tmp_path.rglob("*") if f.is_file()}
    assert files == {".shard", "info"}, "nothing may depend on a server that unpacks gzip files"


def test_jpeg_images_are_close_and_smaller(tmp_path, read_back):
    box = Box.from_shape((40, 70, 80))
    ramp = np.add.outer(np.arange(40), np.add.outer(np.arange(70), np.arange(80)))
    voxels = (ramp % 256).clip(40, 200).astype(np.uint8)
    write_precomputed(tmp_path / "image", box, voxels, image_encoding(voxels.dtype, "jpeg", "a.h5:raw"))
    difference = read_back(tmp_path / "image")[1].astype(int) - voxels
    assert 0 < np.abs(difference).mean() < 4
    assert sum(f.stat().st_size for f in tmp_path.rglob("*.shard")) < voxels.nbytes / 3


def test_many_shards_are_written_one_by_one(tmp_path, monkeypatch):
    """No read covers more than a shard, and together they cover everything once."""
    monkeypatch.setattr(precomputed, "SHARD_BYTES", 2 * 64**3 * 8)
    voxels, reads, scales = labels_like(ODD), [], plan_scales(ODD, (10.0, 10.0, 10.0))

    def read(block):
        reads.append(block)
        return voxels[block.slices(ODD.start)]

    write_volume(tmp_path / "a", LABELS, scales, read)
    assert np.array_equal(read_scale(tmp_path / "a", 0), voxels)
    assert max(block.num_voxels for block in reads) <= 2 * 64**3 and len(reads) > 2
    assert sum(block.num_voxels for block in reads) == ODD.num_voxels
    assert len(list((tmp_path / "a").glob("10_10_10/*.shard"))) == len(reads)


@pytest.mark.parametrize("seed", range(2))
def test_mips_do_not_depend_on_how_they_are_cut(tmp_path, monkeypatch, seed):
    """Compare random boxes, voxel sizes, shards and pieces with the mips of the whole array in memory."""
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(20, 170, 3).tolist()), tuple(rng.integers(-70, 70, 3).tolist()))
    size_nm = tuple(rng.choice([8.0, 16.0, 40.0], 3).tolist())
    monkeypatch.setattr(precomputed, "SHARD_BYTES", 64**3 * 8 * 2 ** int(rng.integers(0, 4)))
    monkeypatch.setattr(precomputed, "PIECE_ZYX", tuple(rng.integers(5, 90, 3).tolist()))
    labels = rng.integers(0, 3, box.shape, np.uint64)
    grey = rng.integers(0, 256, box.shape, np.uint8)
    write_precomputed(tmp_path / "labels", box, labels, LABELS, size_nm)
    write_precomputed(tmp_path / "image", box, grey, image_encoding(grey.dtype, "png", "a"), size_nm)
    for name, whole, method in (("labels", labels, "mode"), ("image", grey, "mean")):
        for mip, scale in enumerate(plan_scales(box, size_nm)):
            if mip:
                whole = ts.downsample(view, scale.factors_zyx, method).read().result()  # noqa: F821
            view = ts.array(whole)[ts.d[:].translate_to[scale.box.start]]  # noqa: F841
            assert np.array_equal(read_scale(tmp_path / name, mip), whole), f"{name}, mip {mip}"


def test_the_contrast_leaves_extremes_out(tmp_path):
    image = np.full((10, 20, 30), 100, np.uint8)
    image[:5], image[0, 0, :3], image[9, 19, :3] = 150, 0, 255
    with open_volume(write(tmp_path / "grey.h5", image)) as volume:
        assert contrast(volume.read, volume.box) == (100, 150)


BIG = 2**63 + 11


def test_shards_return_every_value_with_its_prefix(tmp_path, monkeypatch):
    """TensorStore reads them from several files with several minishards each."""
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    monkeypatch.setattr(shards, "MINISHARD_ITEMS", 4)
    rng = np.random.default_rng(3)
    ids = np.array([1, BIG, *rng.integers(1, 2**63, 60)], np.uint64)
    items = {i: (i, rng.bytes(rng.integers(0, 50)), rng.bytes(rng.integers(1, 90))) for i in ids.tolist()}
    spec = plan_shards(len(ids), sum(len(prefix) + len(value) for _, prefix, value in items.values()))
    assert spec["shard_bits"] >= 1 and spec["minishard_bits"] >= 1
    ids = ids[order_in_shards(spec, ids)]
    for shard in range(2 ** spec["shard_bits"]):
        own = ids[shards_of(spec, ids) == shard].tolist()
        write_shard(shard_path(tmp_path, spec, shard), spec, (items[i] for i in own))
    base = {"driver": "file", "path": f"{tmp_path}/"}
    reader = ts.KvStore.open({"driver": "neuroglancer_uint64_sharded", "metadata": spec, "base": base}).result()
    contents = b"|".join(path.read_bytes() for path in tmp_path.iterdir())
    for segment_id, prefix, value in items.values():
        assert reader.read(segment_id.to_bytes(8, "big")).result().value == value
        assert prefix + value in contents
    assert reader.read((2).to_bytes(8, "big")).result().state == "missing"
