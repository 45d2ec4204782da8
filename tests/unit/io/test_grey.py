"""CLAHE: what is equalised, and that blocks and boxes do not show."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.io.coarser import Equalized
from ffn.io.foreign.arrays import ArrayVolume
from ffn.io.open import open_volume

TILE = 32


@pytest.fixture
def uneven():
    """Noise whose brightness and contrast grow along x, and from section to section; the last section is blank."""
    z, _, x = np.indices((5, 75, 110))
    levels = 60 + 0.8 * x + 4 * z + np.random.default_rng(0).normal(size=z.shape) * (12 + x / 10)
    voxels = levels.clip(0, 255).astype(np.uint8)
    voxels[-1] = 7
    return voxels


@pytest.mark.parametrize("block", [(1, 75, 110), (2, 16, 33)])
def test_blocks_equal_the_whole_volume(uneven, block):
    volume = Equalized(ArrayVolume("raw", uneven, start_zyx=(3, 10, 20)), TILE)
    whole = volume.read()
    for box in volume.box.blocks(block):
        np.testing.assert_array_equal(volume.read(box), whole[box.slices(volume.box.start)])
    assert (whole[-1] == 7).all()


def test_a_pale_section_gets_contrast(uneven):
    pale = 100 + uneven // 16
    after = Equalized(ArrayVolume("raw", pale), TILE).read()
    assert all(section.std() > 4 * before.std() for section, before in zip(after[:-1], pale, strict=False))


def test_a_part_of_a_volume_is_ingested_as_in_the_whole(uneven, tmp_path):
    np.save(tmp_path / "raw.npy", uneven)
    for name, box in (("all", []), ("part", ["--box", "1:3,20:50,30:80"])):
        command = ["ingest", f"{tmp_path}/raw.npy", "--voxel-size", "30", "8", "10", "--clahe-tile", str(TILE), *box]
        assert main([*command, "--out", f"{tmp_path}/{name}.zarr"]) == 0
    with open_volume(tmp_path / "all.zarr") as whole, open_volume(tmp_path / "part.zarr") as part:
        np.testing.assert_array_equal(whole.read(), Equalized(ArrayVolume("raw", uneven), TILE).read())
        np.testing.assert_array_equal(part.read(), whole.read(part.box))
        assert whole.provenance["config"]["clahe_tile"] == TILE


def test_other_types_are_refused():
    with pytest.raises(VolumeError, match="raw: .*clahe_tile"):
        Equalized(ArrayVolume("raw", np.ones((2, 3, 4), np.uint16)), TILE)
