"""Where sections are displaced, segments end: none joins two objects that were apart before, nor does filling."""

import numpy as np
import pytest
from scipy import ndimage

from ffn.cli import main
from ffn.io.open import open_volume

FIRST = 14  # displaced section
SHIFT = 14  # pixels along y and x; both tubes are as far from each other


def displaced_tubes(tubes):
    """Return two tubes along z in dark tissue; all sections from FIRST on are displaced."""
    image = tubes((96, 96, 28), (8, 8 + SHIFT)).transpose(2, 1, 0)
    tissue = ndimage.gaussian_filter(np.random.default_rng(0).standard_normal(image.shape), (8, 1.5, 1.5))
    image = np.where(image > 60, image, np.clip(50 + 40 * tissue / tissue.std(), 1, 100)).astype(np.uint8)
    image[FIRST:] = np.roll(image[FIRST:], (SHIFT, SHIFT), (1, 2))
    return image


@pytest.mark.parametrize("max_shift", ["8", pytest.param("none", marks=pytest.mark.slow)])
def test_no_segment_crosses_a_displacement_that_ingest_finds(max_shift, tmp_path, bright_model, tubes):
    np.save(tmp_path / "raw.npy", displaced_tubes(tubes))
    raw, base, filled = (f"{tmp_path}/{name}.zarr" for name in ("raw", "base", "filled"))
    words = ["--voxel-size", "10", "10", "10", "--offset", "100", "0", "7", "--max-shift", max_shift]
    assert main(["ingest", f"{tmp_path}/raw.npy", *words, "--out", raw]) == 0
    options = ["--precision", "float32", "--min-segment-um3", "5e-05"]
    assert main(["segment", "--image", raw, "--model", str(bright_model), *options, "--out", base]) == 0
    options = ["--max-distance", "100", "--block-size", "10", "64", "64"]
    assert main(["fill", "--segmentation", base, "--image", raw, *options, "--out", filled]) == 0
    for name in (base, filled):
        with open_volume(name) as volume:
            labels = volume.read()
        before, after = (set(np.unique(part).tolist()) - {0} for part in (labels[:FIRST], labels[FIRST:]))
        assert before and after and bool(before & after) == (max_shift == "none")
        assert (labels[FIRST - 1 : FIRST + 1] > 0).any(axis=(1, 2)).all()  # voxels beside it belong to segments
