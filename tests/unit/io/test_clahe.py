"""CLAHE: what is equalised, and that blocks and boxes do not show."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.clahe import Equalized, equalising_curve
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

BOX = Box((3, 10, 20), (8, 10 + 75, 20 + 110))
TILE, CLIP = 32, 0.03


@pytest.fixture
def uneven(tmp_path):
    """Path and dataset of noise whose brightness and contrast grow along x, and from section to section."""
    rng = np.random.default_rng(0)
    z, _, x = np.indices(BOX.shape)
    levels = 60 + 0.8 * x + 4 * z + rng.normal(size=BOX.shape) * (12 + x / 10)
    return write(tmp_path / "raw.h5", levels.clip(0, 255).astype(np.uint8))


def write(path, voxels):
    with create_volume(f"{path}:raw", voxels.dtype, Placement(BOX, (30.0, 8.0, 10.0))) as writer:
        writer.write(BOX, voxels)
    return f"{path}:raw"


def equalised(spec, box=None, tile=TILE, clip=CLIP):
    with open_volume(spec) as volume:
        return Equalized(volume, tile, clip).read(box)


@pytest.mark.parametrize("block", [(1, 75, 110), (2, 16, 33), (5, 7, 90)])
def test_blocks_equal_the_whole_volume(uneven, block):
    whole = equalised(uneven)
    for box in BOX.blocks(block):
        np.testing.assert_array_equal(equalised(uneven, box), whole[box.slices(BOX.start)])


def test_every_part_of_a_section_gets_the_same_contrast(uneven):
    with open_volume(uneven) as volume:
        before, after = volume.read().astype(float), equalised(uneven, tile=16, clip=1.0).astype(float)
    parts = [slice(start, start + 22) for start in range(0, 110, 22)]
    means, spreads = ([getattr(after[:, :, part], name)() for part in parts] for name in ("mean", "std"))
    assert np.ptp(means) < 10 < 60 < np.ptp([before[:, :, part].mean() for part in parts])
    assert np.ptp(spreads) < 5 and abs(after[0].mean() - after[-1].mean()) < 2


def test_one_tile_is_plain_equalisation(uneven):
    with open_volume(uneven) as volume:
        section = volume.read()[2]
    shares = np.array([(section <= level).mean() for level in range(256)])
    np.testing.assert_array_equal(equalised(uneven, tile=1000, clip=1.0)[2], (255 * shares).round()[section])


def test_the_clip_limits_what_a_frequent_level_takes():
    voxels = np.repeat(np.array([10, 200], np.uint8), [900, 100])
    curve = equalising_curve(voxels, 0.01)
    steps = np.diff(curve, prepend=0)
    assert steps.argmax() == 10 and steps[10] < 255 * 0.015
    assert curve[-1] == pytest.approx(255) and (np.diff(curve) > 0).all()


def test_a_part_of_a_volume_is_ingested_as_in_the_whole(uneven, tmp_path):
    for name, box in (("all", []), ("part", ["--box", "4:6,30:60,50:100"])):
        command = ["ingest", uneven, "--clahe-tile", str(TILE), *box]
        assert main([*command, "--out", f"{tmp_path}/{name}.zarr"]) == 0
    with open_volume(tmp_path / "all.zarr") as whole, open_volume(tmp_path / "part.zarr") as part:
        np.testing.assert_array_equal(whole.read(), equalised(uneven))
        np.testing.assert_array_equal(part.read(), whole.read(part.box))
        assert whole.provenance["config"]["clahe_tile"] == TILE


def test_other_types_are_refused(tmp_path):
    spec = write(tmp_path / "deep.h5", np.ones(BOX.shape, np.uint16))
    with open_volume(spec) as volume, pytest.raises(VolumeError, match="has type uint16, but CLAHE is for uint8"):
        Equalized(volume, TILE, CLIP)
