from ffn.io.foreign.formats import tiff


def test_only_existing_files_with_a_tiff_suffix_are_tiff(tmp_path):
    (tmp_path / "a.TIF").touch()
    (tmp_path / "a.png").touch()
    (tmp_path / "folder.tif").mkdir()
    found = [name for name in ("a.TIF", "a.png", "folder.tif", "b.tif") if tiff.recognises(str(tmp_path / name))]
    assert found == ["a.TIF"]
