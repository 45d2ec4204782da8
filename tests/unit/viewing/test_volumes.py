"""The volumes of an export."""

import numpy as np

from ffn.io.open import open_volume
from ffn.viewing import volumes

from ..volumes import write


def test_the_contrast_leaves_out_extreme_grey_levels(tmp_path):
    image = np.full((10, 20, 30), 100, np.uint8)
    image[:5], image[0, 0, :3], image[9, 19, :3] = 150, 0, 255
    with open_volume(write(tmp_path / "raw.h5", image)) as volume:
        assert volumes.contrast(volumes.Part("image", volume, volume.box, (1.0, 1.0, 1.0))) == (100, 150)


def test_edges_are_stored_as_black_and_white(tmp_path):
    with open_volume(write(tmp_path / "edges.h5", np.array([[[0, 1, 7]]], np.uint16))) as volume:
        voxels = volumes.Part("edges", volume, volume.box, (1.0, 1.0, 1.0)).read(volume.box)
    assert voxels.dtype == np.uint8 and voxels.tolist() == [[[0, 255, 255]]]
