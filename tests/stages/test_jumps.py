"""Where sections are displaced, segments end: none joins two objects that were apart before."""

import numpy as np
import pytest

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.section_faults import JUMPS
from ffn.io.volume import Placement

from ..volumes import write_volume

FIRST = 14  # displaced section
SHIFT = 14  # pixels along y and x; both tubes are as far from each other


@pytest.mark.parametrize("is_listed", [True, False])
def test_no_segment_crosses_a_displacement_that_is_listed(is_listed, tmp_path, bright_model, tubes):
    image = tubes((36, 36, 28), (4, 4 + SHIFT)).transpose(2, 1, 0)
    image[FIRST:] = np.roll(image[FIRST:], (SHIFT, SHIFT), (1, 2))
    placement = Placement(Box.from_shape(image.shape, (100, 0, 7)), (10, 10, 10))
    jumps = np.array([[100 + FIRST, 0, 7, 36, 43, SHIFT, SHIFT]])
    raw = write_volume(f"{tmp_path}/raw.zarr", image, placement, {JUMPS: jumps} if is_listed else None)
    out, options = f"{tmp_path}/seg.zarr", ["--precision", "float32", "--min-segment-um3", "5e-05"]
    assert main(["segment", "--image", raw, "--model", str(bright_model), *options, "--out", out]) == 0
    with open_volume(out) as volume:
        labels = volume.read()
    before, after = (set(np.unique(part).tolist()) - {0} for part in (labels[:FIRST], labels[FIRST:]))
    assert before and after and bool(before & after) != is_listed
    assert (labels[FIRST - 1 : FIRST + 1] > 0).any(axis=(1, 2)).all()  # voxels beside it belong to segments
