"""`ffn convert` copies voxels, place and provenance between formats."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement

from ...volumes import write_volume

BOX = Box.from_shape((9, 70, 80), (-2, 5, 100))
VOXELS = np.arange(BOX.num_voxels, dtype=np.uint16).reshape(BOX.shape)
PLACEMENT = Placement(BOX, (40.0, 4.0, 4.0), {"stage": "test"})


@pytest.fixture
def source(tmp_path):
    return write_volume(f"{tmp_path}/a.zarr", VOXELS, PLACEMENT)


def test_a_volume_is_the_same_after_a_round_trip(source, tmp_path):
    assert main(["convert", source, f"{tmp_path}/b.h5:raw"]) == 0
    assert main(["convert", f"{tmp_path}/b.h5:raw", f"{tmp_path}/c/a.zarr"]) == 0
    with open_volume(f"{tmp_path}/b.h5:raw") as volume:
        assert (volume.box, volume.voxel_size_zyx_nm, volume.provenance) == (BOX, (40.0, 4.0, 4.0), {"stage": "test"})
    for path in (tmp_path / "a.zarr").rglob("*"):
        copy = tmp_path / "c" / path.relative_to(tmp_path)
        assert path.is_dir() or path.read_bytes() == copy.read_bytes()


def test_a_box_is_copied_in_its_place(source, tmp_path):
    assert main(["convert", source, f"{tmp_path}/b.zarr", "--box", "0:5,6:70,110:150"]) == 0
    with open_volume(f"{tmp_path}/b.zarr") as volume:
        assert volume.box == Box((0, 6, 110), (5, 70, 150))
        np.testing.assert_array_equal(volume.read(), VOXELS[volume.box.slices(BOX.start)])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a.zarr/0"], "a.zarr/0"),  # the input
        (["b.zarr", "--mip", "1"], "mip 1"),
        (["b.zarr", "--box", "0:99,6:70,110:150"], "0:99,6:70,110:150"),
        (["b.tif"], "b.tif: "),
    ],
)
def test_mistakes_are_told(source, tmp_path, capsys, words, named):
    assert main(["convert", source, f"{tmp_path}/{words[0]}", *words[1:]]) == 2
    assert named in capsys.readouterr().err


def test_a_voxel_size_is_not_invented(tmp_path, capsys):
    np.save(tmp_path / "a.npy", VOXELS)
    assert main(["convert", f"{tmp_path}/a.npy", f"{tmp_path}/b.zarr"]) == 2
    assert "a.npy: " in capsys.readouterr().err
    assert not (tmp_path / "b.zarr").exists()


def test_what_snakemake_watches_names_the_store(source, tmp_path):
    assert main(["convert", f"{source}/zarr.json", f"{tmp_path}/b.zarr/zarr.json"]) == 0
    assert (tmp_path / "b.zarr/0").is_dir()
