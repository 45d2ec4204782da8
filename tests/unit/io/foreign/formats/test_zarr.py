import pytest

from ffn.io.foreign.formats import zarr


@pytest.mark.parametrize("spec", ["precomputed://gs://bucket/x", "https://host/x"])
def test_urls_are_left_to_tensorstore(spec):
    assert zarr.recognises(spec)


@pytest.mark.parametrize("marker", zarr.MARKERS)
def test_a_folder_is_recognised_by_what_it_holds(tmp_path, marker):
    assert not zarr.recognises(str(tmp_path))
    (tmp_path / marker).touch()
    assert zarr.recognises(str(tmp_path))


def test_a_folder_is_recognised_by_its_suffix(tmp_path):
    (tmp_path / "raw.ZARR").mkdir()
    assert zarr.recognises(f"{tmp_path}/raw.ZARR")
    assert not zarr.recognises(f"{tmp_path}/missing.zarr")
