"""OME-Zarr as zarr-python and our own readers see it."""

import json

import numpy as np
import pytest
import zarr

from ffn.geometry import Box
from ffn.io.open import open_mip, open_volume
from ffn.viewing import mips, ome_zarr
from ffn.viewing.config import ExportConfig
from ffn.viewing.export import export
from ffn.viewing.inputs import Sources
from ffn.viewing.mips import plan_scales

from ..volumes import read_scale
from .conftest import BOX, SIZE_NM, two_tubes
from .written import write_image

ODD = Box((13, -7, 2601), (13 + 70, -7 + 90, 2601 + 150))
FORMATS = ExportConfig(formats=("precomputed", "ome-zarr"), image_encoding="png")


def labels_like(box):
    rng = np.random.default_rng(0)
    small = rng.integers(0, 2**63, [-(-n // 9) for n in box.shape], dtype=np.uint64)
    z, y, x = box.shape
    return small.repeat(9, 0).repeat(9, 1).repeat(9, 2)[:z, :y, :x]


def write(group, voxels, box=ODD, size_nm=(40.0, 8.5, 8.5), threads=1):
    def read(block):
        return voxels[block.slices(box.start)]

    scales = plan_scales(box, size_nm)
    write_image(group, voxels.dtype, "mode", scales, read, threads)
    return scales


@pytest.fixture
def exported(tmp_path, sources):
    export(sources, tmp_path / "out", FORMATS)
    return tmp_path / "out"


def test_every_mip_has_the_voxels_of_the_precomputed_one(exported):
    group = zarr.open_group(exported / "ome.zarr", mode="r")
    layers = {"image": group, **{name: group[f"labels/{name}"] for name in ("segmentation", "truth")}}
    assert group["labels"].attrs["ome"]["labels"] == ["segmentation", "truth"]
    for name, image in layers.items():
        paths = [dataset["path"] for dataset in image.attrs["ome"]["multiscales"][0]["datasets"]]
        num_mips = len(json.loads((exported / name / "info").read_text())["scales"])
        assert paths == [str(mip) for mip in range(num_mips)] and num_mips > 1
        for mip, path in enumerate(paths):
            assert np.array_equal(image[path][:], read_scale(exported / name, mip)), (name, mip)
    assert np.array_equal(layers["segmentation"]["0"][:], two_tubes())


def test_our_own_readers_find_every_mip_at_its_place(tmp_path):
    voxels = labels_like(ODD)
    scales = write(tmp_path / "a.zarr", voxels)
    with open_volume(tmp_path / "a.zarr") as volume:
        assert volume.voxel_sizes_zyx_nm == [scale.voxel_size_zyx_nm for scale in scales]
        assert np.array_equal(volume.read(), voxels)
    for mip, scale in enumerate(scales):
        with open_mip(tmp_path / "a.zarr", mip) as volume:
            assert (volume.box, volume.voxel_size_zyx_nm) == (scale.box, scale.voxel_size_zyx_nm)


def test_a_voxel_of_a_mip_is_centred_on_those_it_covers(tmp_path):
    """Scale and translation place centres: voxel 1 of mip 1 covers the voxels 2 and 3, and 0 and 1 lie before it."""
    write(tmp_path / "a.zarr", np.ones((4, 80, 100), np.uint64), Box((0, 0, 2), (4, 80, 102)), (40.0, 8.0, 8.0))
    fine, coarse = zarr.open_group(tmp_path / "a.zarr", mode="r").attrs["ome"]["multiscales"][0]["datasets"][:2]
    places = [[step[step["type"]] for step in each["coordinateTransformations"]] for each in (fine, coarse)]
    assert places == [[[40, 8, 8], [0, 0, 16]], [[40, 16, 16], [0, 4, 20]]]


def test_many_shards_are_written_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(ome_zarr, "SHARD_BYTES", 2 * 64**3 * 8)
    voxels, reads = labels_like(ODD), []

    def read(block):
        reads.append(block)
        return voxels[block.slices(ODD.start)]

    scales = plan_scales(ODD, (10.0, 10.0, 10.0))
    write_image(tmp_path / "a.zarr", voxels.dtype, "mode", scales, read, threads=3)
    assert max(block.num_voxels for block in reads) <= 2 * 64**3 and len(reads) > 2
    assert sum(block.num_voxels for block in reads) == ODD.num_voxels
    files = [path for path in (tmp_path / "a.zarr").rglob("*") if path.is_file()]
    assert len([path for path in files if path.parent.parent.parent.parent.name == "0"]) == len(reads)
    assert np.array_equal(zarr.open_array(tmp_path / "a.zarr/0", mode="r")[:], voxels)


@pytest.mark.parametrize("seed", range(4))
def test_mips_do_not_depend_on_how_they_are_cut(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    box = Box.from_shape(tuple(rng.integers(20, 170, 3).tolist()), tuple(rng.integers(-70, 70, 3).tolist()))
    size_nm = tuple(rng.choice([8.0, 16.0, 40.0], 3).tolist())
    voxels = rng.integers(0, 3, box.shape, np.uint64)
    scales = write(tmp_path / "whole.zarr", voxels, box, size_nm)
    monkeypatch.setattr(ome_zarr, "SHARD_BYTES", 64**3 * 8 * 2 ** int(rng.integers(0, 3)))
    monkeypatch.setattr(mips, "PIECE_ZYX", tuple(rng.integers(5, 90, 3).tolist()))
    write(tmp_path / "cut.zarr", voxels, box, size_nm, threads=2)
    for mip in range(len(scales)):
        whole, cut = (zarr.open_array(tmp_path / name / str(mip), mode="r")[:] for name in ("whole.zarr", "cut.zarr"))
        assert np.array_equal(whole, cut)


def test_the_metadata_fulfil_the_specification(exported):
    image = zarr.open_group(exported / "ome.zarr", mode="r")
    (multiscale,) = image.attrs["ome"]["multiscales"]
    assert [(axis["name"], axis["type"], axis["unit"]) for axis in multiscale["axes"]] == [
        (axis, "space", "nanometer") for axis in "zyx"
    ]
    assert [image[mip["path"]].ndim for mip in multiscale["datasets"]] == [3] * len(multiscale["datasets"])
    assert set(image["labels"].attrs["ome"]["labels"]) == {"segmentation", "truth"}
    for name in ("segmentation", "truth"):
        ome = image[f"labels/{name}"].attrs["ome"]
        assert ome["version"] == "0.5" and ome["image-label"]["source"]["image"] == "../../"


def test_labels_without_an_image_have_a_group_around_them(tmp_path, sources):
    export(Sources(segmentation=sources.segmentation), tmp_path / "out", FORMATS)
    group = zarr.open_group(tmp_path / "out/ome.zarr", mode="r")
    assert group.attrs["ome"] == {"version": "0.5"} and list(group["labels"]) == ["segmentation"]
    with open_volume(tmp_path / "out/ome.zarr/labels/segmentation") as volume:
        assert (volume.box, volume.voxel_size_zyx_nm, volume.dtype) == (BOX, SIZE_NM, np.uint64)


def test_by_default_there_is_none(tmp_path, sources):
    export(sources, tmp_path / "out", ExportConfig())
    assert not (tmp_path / "out/ome.zarr").exists()
