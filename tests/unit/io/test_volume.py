import pytest

from ffn.errors import VolumeError
from ffn.io.open import open_volume
from ffn.io.volume import NO_SIZE, require_other_file, split_spec, voxel_size_of

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
