"""The formats, apart from each other and listed in one place."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.io.open import FORMATS, open_volume, readable_formats
from ffn.io.store_names import CHUNKED_FILES
from ffn.workflow.run import VolumeConfig

ZARR = "OME-Zarr"


def format_of(spec):
    """Return the first word of the one format that recognises a source, None if none does."""
    found = [known.title.split(" ")[0].strip(",") for known in FORMATS if known.recognises(str(spec))]
    assert len(found) <= 1
    return found[0] if found else None


def test_exactly_one_format_recognises_a_source(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4), np.uint8))
    tifffile.imwrite(tmp_path / "a.TIF", np.zeros((2, 3, 4), np.uint8))
    (tmp_path / "slices").mkdir()
    Image.new("L", (4, 3)).save(tmp_path / "slices/z1.PNG")
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.mrc").write_bytes(b"x")
    (tmp_path / "a.nii.gz").write_bytes(b"x")
    sources = ("a.npy", "a.TIF", "slices", "a.zarr", "a.mrc", "a.nii.gz")
    assert [format_of(tmp_path / name) for name in sources] == ["NumPy", "multipage", "slices", ZARR, "MRC", "NIfTI"]
    (tmp_path / "folder.tif").mkdir()
    assert [format_of(tmp_path / name) for name in ("folder.tif", "b.tif", "slices/z1.PNG")] == [None] * 3


@pytest.mark.parametrize("marker", CHUNKED_FILES)
def test_a_folder_of_zarr_is_recognised_by_its_files_and_may_hold_a_picture(tmp_path, marker):
    for name in (marker, "preview.png"):
        (tmp_path / name).touch()
    assert format_of(tmp_path) == ZARR


def test_a_file_with_brackets_is_no_glob_and_every_format_is_listed(tmp_path, capsys):
    (tmp_path / "stack[1].tif").touch()
    assert format_of(tmp_path / "stack[1].tif") == "multipage" and format_of(tmp_path / "*.png") == "slices"
    with pytest.raises(SystemExit):
        main(["ingest", "--help"])
    assert readable_formats() in " ".join(capsys.readouterr().out.split())
    assert VolumeConfig.model_fields["image"].description == readable_formats()


@pytest.mark.parametrize("name", ["nowhere", "movie.avi"])
def test_what_no_format_recognises_is_refused_with_the_list(tmp_path, name):
    (tmp_path / "movie.avi").write_bytes(b"x")
    with pytest.raises(VolumeError, match=f"{name}: .*FILE.h5:DATASET, .*TIFF"):
        open_volume(tmp_path / name).__enter__()
