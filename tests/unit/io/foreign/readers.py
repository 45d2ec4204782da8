"""What the tests of formats share: a small volume, and checks that a source is read as it is or refused."""

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Volume

SHAPE = (5, 12, 20)
BOX = Box((1, 3, 7), (4, 9, 16))


def voxels(dtype=np.uint8):
    return np.random.default_rng(1).integers(0, 250, SHAPE).astype(dtype)


def check(spec, expected=None, box=None):
    """Check the whole volume and a part of it; return its voxel size."""
    expected = voxels() if expected is None else expected
    box = box or Box.from_shape(expected.shape)
    with open_volume(str(spec)) as volume:
        assert isinstance(volume, Volume)
        assert volume.box == box
        assert volume.dtype == expected.dtype
        np.testing.assert_array_equal(volume.read(), expected)
        np.testing.assert_array_equal(volume.read(BOX.shift(box.start)), expected[BOX.slices()])
        assert volume.read().dtype == expected.dtype
        with pytest.raises(VolumeError, match="outside"):
            volume.read(box.grow((0, 0, 1)))
        return volume.voxel_size_zyx_nm


def refuse(spec, *parts):
    """Check that `spec` is refused in one line that holds all `parts`."""
    with pytest.raises(VolumeError) as caught, open_volume(str(spec)) as volume:
        volume.read()
    message = str(caught.value)
    assert "\n" not in message
    for part in map(str, parts):
        assert part in message
