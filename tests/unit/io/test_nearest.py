"""A volume of another voxel size is read at the voxels of a box, a little at a time."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io import nearest
from ffn.io.foreign.arrays import ArrayVolume

SIZE = (40.0, 12.0, 12.0)
BOX = Box((1, -3, 4), (5, 12, 40))


@pytest.mark.parametrize("factors", [(1, 3, 3), (5, 1, 3), (1, 1, 1), (1, 1 / 3, 1 / 2)])
def test_pieces_do_not_show(monkeypatch, factors):
    """A voxel is that of the other volume in which its centre lies, and 9 beyond it."""
    monkeypatch.setattr(nearest, "READ_BYTES", 500)
    start, shape = (2, 0, 1), (20, 30, 90)
    voxels = np.random.default_rng(1).integers(0, 9, shape).astype(np.uint8)
    volume = ArrayVolume("fine", voxels, zyx_nm(factors), start)
    sizes, read = [], volume.read
    volume.read = lambda box: sizes.append(box.num_voxels) or read(box)
    found = nearest.read_nearest(volume, BOX, SIZE, outside=9)
    centres = np.moveaxis(np.indices(BOX.shape), 0, -1) + BOX.start + 0.5
    places = np.floor(centres * factors).astype(int) - start
    known = ((places >= 0) & (places < shape)).all(-1)
    assert 0 < known.mean() < 1 and len(sizes) > 1 and max(sizes) <= 500
    expected = np.full(BOX.shape, 9, np.uint8)
    expected[known] = voxels[tuple(places[known].T)]
    np.testing.assert_array_equal(found, expected)


def zyx_nm(factors):
    return tuple(side / factor for side, factor in zip(SIZE, factors, strict=True))


@pytest.mark.parametrize("read", [BOX.grow((3, 9, 9)), BOX])
def test_voxels_of_the_same_size_are_not_copied_again(read):
    voxels = np.random.default_rng(1).integers(0, 9, read.shape).astype(np.uint8)
    volume = ArrayVolume("same", voxels, SIZE, read.start)
    blocks = []
    volume.read = lambda box: blocks.append(voxels[box.slices(read.start)].copy()) or blocks[-1]
    found = nearest.read_nearest(volume, BOX, SIZE, outside=9)
    assert found is blocks[0] and len(blocks) == 1
    np.testing.assert_array_equal(found, voxels[BOX.slices(read.start)])
