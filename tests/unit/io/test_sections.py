"""Sections of uneven grey levels become even, and the levels of even ones stay."""

import numpy as np
import pytest
from scipy import ndimage

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.coarser import JUMPS, levelled, levels_of
from ffn.io.foreign.arrays import ArrayVolume

from ..volumes import read

SHAPE = (12, 64, 72)


def tissue() -> np.ndarray:
    """Return grey levels that change slowly along z, with a black margin outside of the tissue."""
    noise = np.random.default_rng(0).standard_normal(SHAPE)
    smooth = ndimage.gaussian_filter(noise, 2.0)
    image = 120 + 25 * smooth / smooth.std()
    image[:, :, :6] = 0
    return image.clip(0, 255).astype(np.uint8)


def uneven() -> np.ndarray:
    """Return the same, with another brightness and contrast of every section."""
    rng, image = np.random.default_rng(1), tissue()
    gains, shifts = rng.uniform(0.7, 1.2, (2, len(image), 1, 1)) * [[[[1]]], [[[40]]]]
    changed = (image - 120.0) * gains + 80 + shifts + 25 * (np.arange(len(image)) % 2)[:, None, None]
    return np.where(image > 0, changed.clip(1, 255), 0).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_levelled_sections_have_the_same_quartiles_whatever_part_is_read(dtype):
    volume = ArrayVolume("raw", uneven().astype(dtype), start_zyx=(3, 10, 20))
    levels = levels_of(volume, volume.box)
    assert levels.jump > JUMPS
    even = levelled(volume, levels, volume.box)
    whole = even.read()
    quartiles = np.array([np.percentile(section[section > 0], (25, 50, 75)) for section in whole])
    assert whole.dtype == dtype and np.ptp(quartiles, axis=0).max() <= 3
    assert ((whole == 0) == (uneven() == 0)).all()
    part = volume.box.grow((-4, -7, -9))
    np.testing.assert_array_equal(even.read(part), whole[part.slices(volume.box.start)])


def test_even_sections_stay_whatever_is_around_them():
    image = uneven()
    image[4], image[7] = 0, 90
    volume = ArrayVolume("raw", image)
    whole = levelled(volume, levels_of(volume, volume.box), volume.box).read()
    assert not whole[4].any() and (whole[7] == 90).all()
    assert levels_of(ArrayVolume("raw", np.zeros_like(image)), volume.box) is None
    image = np.concatenate([np.full((len(uneven()), 64, 200), 250, np.uint8), uneven()], axis=2)
    volume, box = ArrayVolume("raw", image), Box((2, 0, 200), (12, 64, 272))
    alone = ArrayVolume("raw", uneven()[2:])
    found = levelled(volume, levels_of(volume, box), box).read()
    np.testing.assert_array_equal(found, levelled(alone, levels_of(alone, alone.box), alone.box).read())


@pytest.mark.parametrize(
    ("image", "words", "is_changed"),
    [
        (tissue, [], False),
        (uneven, [], True),
        (uneven, ["--level-sections", "never"], False),
        (tissue, ["--level-sections", "always"], True),
    ],
)
def test_ingest_levels_sections_that_jump(image, words, is_changed, tmp_path, caplog):
    np.save(tmp_path / "raw.npy", image())
    words = ["ingest", f"{tmp_path}/raw.npy", "--voxel-size", "30", "8", "8", *words]
    assert main([*words, "--out", f"{tmp_path}/raw.zarr"]) == 0
    assert (read(f"{tmp_path}/raw.zarr") != image()).any() == is_changed
    assert ("--level-sections" in caplog.text) == (image is uneven and is_changed)
