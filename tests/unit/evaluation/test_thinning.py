"""Labels read at a coarser spacing."""

import numpy as np

from ffn.evaluation.thinning import assemble, read_thinned, step_for, thin
from ffn.geometry import Box


class Labels:
    """A volume in memory."""

    def __init__(self, voxels, start):
        self.voxels, self.box, self.dtype = voxels, Box.from_shape(voxels.shape, start), voxels.dtype

    def read(self, box):
        return self.voxels[box.slices(self.box.start)]


def test_the_middle_voxel_of_every_step_is_read_whatever_the_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    volume = Labels(rng.integers(0, 99, (11, 23, 30)).astype(np.uint64), (3, -5, 8))
    expected = volume.voxels[1::3, 2::5, 0::1]
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    monkeypatch.setattr("ffn.evaluation.thinning.BLOCK", 6)
    assert np.array_equal(read_thinned(volume, volume.box, (3, 5, 1)), expected)
    assert step_for(40, (30.0, 10.0, 90.0), volume.box.shape) == (1, 4, 1)


def test_thin_stacks_keep_a_section():
    volume = Labels(np.arange(24).reshape(2, 3, 4), (0, 0, 0))
    step = step_for(40, (8.0, 8.0, 30.0), (2, 3, 4))
    assert step == (2, 3, 1)
    assert read_thinned(volume, volume.box, step).tolist() == [[volume.voxels[1, 1].tolist()]]


def test_blocks_of_any_size_give_the_same_voxels():
    rng = np.random.default_rng(1)
    volume = Labels(rng.integers(0, 99, (11, 23, 30)).astype(np.uint64), (3, -5, 8))
    step = (3, 5, 1)
    for size in ((1, 2, 30), (4, 7, 11), (6, 23, 8)):
        blocks = list(volume.box.blocks(size))
        parts = (thin(volume, block, volume.box, step) for block in blocks)
        assert np.array_equal(assemble(parts, blocks, volume.box, step), volume.voxels[1::3, 2::5, 0::1])
