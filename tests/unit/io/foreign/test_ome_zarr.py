"""OME-Zarr: images that ome-zarr-py 0.18 wrote (data/*.zip), and what its specification allows besides."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import Box
from ffn.io.config import IngestConfig
from ffn.io.ingest import ingest
from ffn.io.open import open_mip, open_volume

from ....volumes import multiscale
from .readers import check, refuse, voxels

VERSIONS = ("0.4", "0.5")
IMAGE = (np.arange(6 * 16 * 24) % 251).astype(np.uint8).reshape(6, 16, 24)
SIZES = [(40, 4, 4.5), (40, 8, 9), (80, 16, 18)]


def unpack(path, version="0.5"):
    """Put an image in three mips at `path`, with axes c, z, y, x in µm, nm and nm."""
    with zipfile.ZipFile(Path(__file__).parent / f"data/ome-zarr-{version}.zip") as file:
        file.extractall(path)


def edit(path, change):
    """Change the description of the image, in either version."""
    file = next(file for name in (".zattrs", "zarr.json") if (file := Path(path) / name).exists())
    content = json.loads(file.read_text())
    attributes = content.get("attributes", {}).get("ome", content)
    change(attributes["multiscales"][0])
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mip", [1, 2])
def test_number_and_voxel_size_choose_the_mip(tmp_path, version, mip):
    """The first voxel of all mips is at the corner of the volume, though ome-zarr-py shifts the centres."""
    unpack(tmp_path / "a.zarr", version)
    expected = zarr.open_array(tmp_path / f"a.zarr/s{mip}")[0]
    for choice in ({"mip": mip}, {"size_zyx_nm": SIZES[mip]}):
        with open_mip(tmp_path / "a.zarr", **choice) as volume:
            assert volume.voxel_size_zyx_nm == pytest.approx(SIZES[mip])
            assert volume.box == Box.from_shape(expected.shape)
            np.testing.assert_array_equal(volume.read(), expected)
    with open_volume(tmp_path / f"a.zarr/s{mip}") as volume:
        assert volume.voxel_size_zyx_nm == pytest.approx(SIZES[mip])
        assert volume.box == Box.from_shape(expected.shape)


@pytest.mark.parametrize(
    "choice, what", [({"mip": 3}, "mip 3"), ({"size_zyx_nm": (7, 7, 7)}, r"voxels of \(7, 7, 7\) nm")]
)
def test_a_mip_that_is_not_there_is_refused(tmp_path, choice, what):
    unpack(tmp_path / "a.zarr")
    listed = r"from mip 0 are \(40.0, 4.0, 4.5\) nm, \(40.0, 8.0, 9.0\) nm, \(80.0, 16.0, 18.0\) nm"
    with pytest.raises(VolumeError, match=f"a.zarr: has no {what}, its voxels {listed}"):
        with open_mip(tmp_path / "a.zarr", **choice):
            pass


@pytest.mark.parametrize("version", VERSIONS)
def test_scale_and_translation_of_the_image_apply_to_every_mip(tmp_path, version):
    """A translation of 7 fine voxels in y is no whole number of coarse ones."""
    unpack(tmp_path / "a.zarr", version)
    steps = [{"type": "scale", "scale": [1, 1, 2, 2]}, {"type": "translation", "translation": [0, 0.4, -56, 90]}]
    edit(tmp_path / "a.zarr", lambda content: content.update(coordinateTransformations=steps))
    box = Box.from_shape(IMAGE.shape, (10, -7, 10))
    for path in ("a.zarr", "a.zarr/s0"):
        assert check(tmp_path / path, IMAGE, box) == pytest.approx((40, 8, 9))
    with pytest.raises(VolumeError, match=r"mip 1\): translation "):
        with open_mip(tmp_path / "a.zarr", mip=1):
            pass
    ingest(f"{tmp_path}/a.zarr/s0", f"{tmp_path}/coarse.zarr", IngestConfig(mip=1))  # what the message advises
    with open_volume(tmp_path / "coarse.zarr") as coarse:
        assert coarse.box.start[1] == -4  # the fine voxels -8 and -7


@pytest.mark.parametrize("copy_image", ["auto", "always"])
@pytest.mark.parametrize(("mip", "start"), [(None, (7, 8, 10)), (1, (7, 8, 10)), (3, (7, 4, 5))])
def test_a_given_place_counts_instead_of_one_between_voxels(tmp_path, mip, start, copy_image):
    """Some programs count from the corner of the volume, so the centre of the first voxel is half a voxel away."""
    unpack(tmp_path / "a.zarr")
    step = {"type": "translation", "translation": [0, 0.02, 2, 2.25]}
    edit(tmp_path / "a.zarr", lambda content: content.update(coordinateTransformations=[step]))
    with pytest.raises(VolumeError, match="translation .* --offset"):
        open_mip(tmp_path / "a.zarr", mip).__enter__()
    config = IngestConfig(mip=mip, offset_zyx=(7, 8, 10), copy_image=copy_image)
    ingest(f"{tmp_path}/a.zarr", f"{tmp_path}/out.zarr", config)
    with open_volume(tmp_path / "out.zarr") as volume:
        assert volume.box.start == start
        if mip != 3:  # which is made
            np.testing.assert_array_equal(volume.read(), zarr.open_array(tmp_path / f"a.zarr/s{mip or 0}")[0])


def test_without_units_the_mip_or_its_array_is_named(tmp_path):
    unpack(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr", lambda content: [axis.pop("unit", None) for axis in content["axes"]])
    assert check(tmp_path / "a.zarr", IMAGE) is None
    with open_mip(tmp_path / "a.zarr", mip=1, size_zyx_nm=(40, 8, 9)) as volume:
        assert volume.voxel_size_zyx_nm is None
    with pytest.raises(VolumeError, match="of unknown size"):
        open_mip(tmp_path / "a.zarr", size_zyx_nm=(40, 8, 9)).__enter__()
    with open_mip(tmp_path / "a.zarr/s0", size_zyx_nm=(40, 8, 9)) as volume:
        np.testing.assert_array_equal(volume.read(), IMAGE)


def test_axes_without_units_and_unknown_units(tmp_path):
    datasets = [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [4.5, 40, 4]}]}]
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=2)
    array = group.create_array("s0", data=voxels().transpose(2, 0, 1))
    group.attrs["multiscales"] = [{"axes": [{"name": name} for name in "xzy"], "datasets": datasets}]
    assert check(tmp_path / "a.zarr/s0") is None
    array.attrs["resolution"] = [40, 4, 4.5]
    assert check(tmp_path / "a.zarr/s0") == (40, 4, 4.5)
    unpack(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr", lambda content: [axis.update(unit="furlong") for axis in content["axes"]])
    with pytest.raises(ConfigError, match="'furlong'"):
        ingest(f"{tmp_path}/a.zarr", f"{tmp_path}/out.zarr", IngestConfig())
    ingest(f"{tmp_path}/a.zarr", f"{tmp_path}/out.zarr", IngestConfig(mip=0, voxel_size_zyx_nm=(40, 8, 8)))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_axes_are_put_in_order_by_their_names(tmp_path, zarr_format):
    content = [multiscale({"deep/s0": (4.5, 40, 4)}, "xzy")]
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=zarr_format)
    group.create_array("deep/s0", data=voxels().transpose(2, 0, 1), chunks=(7, 3, 4))
    group.attrs.update({"multiscales": content} if zarr_format == 2 else {"ome": {"multiscales": content}})
    assert check(tmp_path / "a.zarr") == (40, 4, 4.5)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["axes"].pop(),
        lambda content: content["axes"][2].update(name="w"),
        lambda content: content["datasets"][0].pop("path"),
        lambda content: content["datasets"][0].update(coordinateTransformations=[{"type": "affine"}]),
        lambda content: content["datasets"][0]["coordinateTransformations"][0].update(scale=[1, 40, 0, 4.5]),
    ],
)
def test_damaged_metadata_are_refused(tmp_path, change):
    unpack(tmp_path / "a.zarr")
    edit(tmp_path / "a.zarr", change)
    refuse(tmp_path / "a.zarr", "metadata of ", "a.zarr: ")


@pytest.mark.parametrize("of_image", [True, False])
def test_a_transformation_with_too_few_numbers_is_named(tmp_path, of_image):
    unpack(tmp_path / "a.zarr")
    steps = [{"type": "scale", "scale": [1, 2, 2]}]
    owner = (lambda content: content) if of_image else (lambda content: content["datasets"][0])
    edit(tmp_path / "a.zarr", lambda content: owner(content).update(coordinateTransformations=steps))
    refuse(tmp_path / "a.zarr", "a.zarr: ", "scale ", " 3 ", " 4")


@pytest.mark.parametrize("content", ['{"a": ' + "[" * 10**5, '{"multiscales": [{"datasets": [{"path": "../../b"}]}]}'])
def test_hostile_metadata_are_one_line(tmp_path, content):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "a.zarr/.zattrs").write_text(content)
    refuse(tmp_path / "a.zarr", "a.zarr")


def test_a_group_of_images_names_those_inside(tmp_path):
    unpack(tmp_path / "all.zarr/0")
    zarr.open_group(tmp_path / "all.zarr").attrs.update({"ome": {"bioformats2raw.layout": 3}})
    refuse(tmp_path / "all.zarr", "all.zarr: ", "those inside: 0")
