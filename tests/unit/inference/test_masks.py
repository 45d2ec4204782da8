import numpy as np
import pytest

from ffn.config import SegmentConfig
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.inference.masks import read_mask
from ffn.io.hdf5_volume import create_volume
from ffn.io.volume import Placement

BOX = Box((4, 10, 20), (8, 16, 28))


def write_mask(folder, box):
    """Write a volume whose first slice is 0 and whose other voxels are 7."""
    spec = f"{folder}/mask.h5:mask"
    with create_volume(spec, np.uint8, Placement(box)) as out:
        out.write(box, np.where(np.arange(box.shape[0])[:, None, None] > 0, 7, np.zeros(box.shape, np.uint8)))
    return spec


def test_without_a_mask_nothing_is_read():
    assert read_mask(SegmentConfig(), BOX) is None


def test_boxes_and_the_volume_mask_together(tmp_path):
    mask = write_mask(tmp_path, Box((5, 0, 0), (9, 20, 30)).grow((1, 0, 0)))
    config = SegmentConfig(mask=mask, mask_boxes=("0:5,12:14,0:22", "100:200,0:9,0:9"))
    expected = np.zeros(BOX.shape, bool)
    expected[1:] = True  # the mask starts at z = 4
    expected[:1, 2:4, :2] = True
    np.testing.assert_array_equal(read_mask(config, BOX), expected)


def test_boxes_elsewhere_mask_nothing():
    masked = read_mask(SegmentConfig(mask_boxes=("0:4,0:99,0:99", "4:8,16:20,20:28")), BOX)
    assert masked is not None and not masked.any()


def test_a_mask_volume_must_cover_the_box(tmp_path):
    mask = write_mask(tmp_path, BOX.grow((0, 0, -1)))
    with pytest.raises(VolumeError, match=r"the mask covers 4:8,10:16,21:27, expected all of 4:8,10:16,20:28"):
        read_mask(SegmentConfig(mask=mask), BOX)
