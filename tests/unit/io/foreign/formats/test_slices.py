from ffn.io.foreign.formats import slices


def test_folders_of_images_and_globs_are_slices(tmp_path):
    (tmp_path / "z1.PNG").touch()
    assert slices.recognises(str(tmp_path))
    assert slices.recognises(f"{tmp_path}/*.png")
    assert not slices.recognises(f"{tmp_path}/z1.PNG")


def test_a_zarr_folder_with_a_picture_is_not_slices(tmp_path):
    for name in ("preview.png", "zarr.json"):
        (tmp_path / name).touch()
    assert not slices.recognises(str(tmp_path))


def test_a_file_with_brackets_in_its_name_is_no_glob(tmp_path):
    (tmp_path / "stack[1].tif").touch()
    assert not slices.recognises(f"{tmp_path}/stack[1].tif")
