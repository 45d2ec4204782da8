"""The formats: found where they lie, apart from each other, listed in one place."""

import numpy as np
import pytest
import tifffile
from PIL import Image

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.io.foreign import formats, known_formats, open_source, readable_formats
from ffn.workflow.run import VolumeConfig

NEW_FORMAT = '''
"""A format that a user adds."""

TITLE = "text (.txt)"


def recognises(spec):
    return spec.endswith(".txt")


def open_volume(spec):
    return f"the volume in {spec}"
'''


def write_sources(folder):
    """Write one source in each format; return them by the name of the format's module."""
    np.save(folder / "a.npy", np.zeros((2, 3, 4), np.uint8))
    tifffile.imwrite(folder / "a.tif", np.zeros((2, 3, 4), np.uint8))
    (folder / "slices").mkdir()
    Image.new("L", (4, 3)).save(folder / "slices/z1.png")
    (folder / "a.zarr").mkdir()
    (folder / "a.mrc").write_bytes(b"x")
    (folder / "a.nii.gz").write_bytes(b"x")
    names = {"mrc": "a.mrc", "nifti": "a.nii.gz", "npy": "a.npy", "slices": "slices", "tiff": "a.tif", "zarr": "a.zarr"}
    return {format_: str(folder / name) for format_, name in names.items()}


def test_exactly_one_format_recognises_a_source(tmp_path):
    sources = write_sources(tmp_path)
    names = {known.__name__.rpartition(".")[2]: known for known in known_formats()}
    assert names.keys() == sources.keys()
    for name, source in sources.items():
        assert [other for other, known in names.items() if known.recognises(source)] == [name]


def test_a_module_among_the_formats_is_all_that_a_new_format_needs(tmp_path, monkeypatch):
    (tmp_path / "text.py").write_text(NEW_FORMAT)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    assert open_source("a.txt") == "the volume in a.txt"
    assert "text (.txt)" in readable_formats()


def test_help_and_configuration_list_every_format(capsys):
    with pytest.raises(SystemExit):
        main(["ingest", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert readable_formats() in text
    assert VolumeConfig.model_fields["image"].description == readable_formats()
    assert all(known.TITLE in readable_formats() for known in known_formats())


@pytest.mark.parametrize("name, found", [("nowhere", "no such file or folder"), ("movie.avi", "is in no known format")])
def test_what_no_format_recognises_is_refused_with_the_list(tmp_path, name, found):
    (tmp_path / "movie.avi").write_bytes(b"x")
    with pytest.raises(VolumeError, match=f"{name}: {found}, expected FILE.h5:DATASET, .*multipage TIFF"):
        open_source(str(tmp_path / name))
