"""The border band of the CREMI challenge."""

import numpy as np

from ffn.evaluation.border import near_border, read_without_border
from ffn.io.open import open_volume

from ..volumes import write
from .conftest import SIZE_ZYX_NM


def test_the_border_band_is_measured_in_nanometres_within_a_section():
    labels = np.ones((2, 9, 11), np.uint64)
    labels[0, :, 6:] = 2
    band = near_border(labels, 20.0, SIZE_ZYX_NM)
    assert not band[1].any()  # only the own section counts
    assert np.flatnonzero(band[0, 4]).tolist() == [4, 5, 6, 7]  # x: the two voxels at the border, and 20 nm more
    turned = near_border(labels.transpose(0, 2, 1), 20.0, SIZE_ZYX_NM)
    assert np.flatnonzero(turned[0, :, 4]).tolist() == [3, 4, 5, 6, 7, 8]  # y: 10 nm voxels, two more


def test_the_band_does_not_depend_on_how_a_volume_is_read(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (3, 5, 6)).repeat(4, 1).repeat(5, 2).astype(np.uint64)
    with open_volume(write(tmp_path / "labels.h5", labels, (2, -3, 7), SIZE_ZYX_NM)) as truth:
        whole = read_without_border(truth, truth.box, 20.0, SIZE_ZYX_NM)
        for block in truth.box.blocks((2, 7, 9)):
            assert np.array_equal(
                read_without_border(truth, block, 20.0, SIZE_ZYX_NM), whole[block.slices(truth.box.start)]
            )
    assert np.array_equal(whole, np.where(near_border(labels, 20.0, SIZE_ZYX_NM), 0, labels)) and whole.any()
