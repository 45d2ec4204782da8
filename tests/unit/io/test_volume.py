import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.io.open import open_volume
from ffn.io.volume import (
    NO_SIZE,
    require_image,
    require_labels,
    require_other_file,
    require_same_voxel_size,
    split_spec,
    voxel_size_of,
)

from .volumes import write_foreign


@pytest.mark.parametrize(
    "spec, parts",
    [
        ("a/raw.h5:raw", ("a/raw.h5", "raw")),
        ("a/raw.HDF5:volumes/raw", ("a/raw.HDF5", "volumes/raw")),
        ("raw.h5", ("raw.h5", None)),
        ("raw.h5:", ("raw.h5:", None)),
        ("precomputed://http://host:80/x", ("precomputed://http://host:80/x", None)),
        ("odd:name/slices", ("odd:name/slices", None)),
    ],
)
def test_a_spec_is_split_at_the_dataset(spec, parts):
    assert split_spec(spec) == parts


@pytest.mark.parametrize(
    "dtype, is_image, is_labels",
    [("u1", True, True), ("u2", True, True), ("u4", False, True), ("f4", True, False), ("i4", False, True)],
)
def test_images_are_unsigned_or_float_and_labels_are_integers(tmp_path, dtype, is_image, is_labels):
    with open_volume(write_foreign(tmp_path / "a.h5", dtype=dtype)) as volume:
        for require, fits in ((require_image, is_image), (require_labels, is_labels)):
            if fits:
                require(volume)
            else:
                with pytest.raises(VolumeError, match=f"a.h5:raw: has type {volume.dtype}, expected"):
                    require(volume)


@pytest.mark.parametrize(
    "size, other, is_same",
    [
        ((40, 4, 4), (40.03, 4, 4), True),
        ((40, 4, 4), (40.05, 4, 4), False),
        ((40, 4, 4), (4, 4, 40), False),
        (None, (40, 4, 4), True),
        ((40, 4, 4), None, True),
    ],
)
def test_voxel_sizes_that_both_volumes_declare_must_be_equal(tmp_path, size, other, is_same):
    attributes = [{} if each is None else {"voxel_size_nm": np.array(each, float)} for each in (size, other)]
    specs = [write_foreign(tmp_path / f"{name}.h5", each) for name, each in zip("ab", attributes, strict=True)]
    with open_volume(specs[0]) as a, open_volume(specs[1]) as b:
        if is_same:
            require_same_voxel_size(a, b)
        else:
            with pytest.raises(VolumeError, match="a.h5:raw: .*b.h5:raw"):
                require_same_voxel_size(a, b)


def test_a_voxel_without_declared_size_is_a_cube(tmp_path, spec, caplog):
    with open_volume(spec) as volume, open_volume(write_foreign(tmp_path / "a.h5")) as foreign:
        assert voxel_size_of(volume) == (40.0, 4.0, 4.5)
        assert caplog.text == ""
        for _ in range(2):
            assert voxel_size_of(foreign) == NO_SIZE
    assert caplog.text.count("a.h5:raw: has no") == 1


@pytest.mark.parametrize("out", ["raw.h5:raw", "raw.h5:other", "x/../raw.h5:raw"])
def test_an_output_in_the_file_of_an_input_is_refused(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    require_other_file("new.h5:raw", "raw.h5:raw", "labels.h5:labels")
    with pytest.raises(VolumeError, match=f"{out}: "):
        require_other_file(out, "labels.h5:labels", f"{tmp_path}/raw.h5:raw")


@pytest.mark.parametrize("source", ["raw.zarr", "zarr://raw.zarr", "zarr3://raw.zarr/0", "x/../raw.zarr/edges"])
def test_a_store_is_the_same_under_all_its_names(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    require_other_file("new.zarr", source)
    for out in ("raw.zarr", f"file://{tmp_path}/raw.zarr", "raw.zarr/0"):
        with pytest.raises(VolumeError, match="of the input"):
            require_other_file(out, source)
