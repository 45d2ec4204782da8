import numpy as np
import pytest

from ffn.synthetic import tissue
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.tissue import border_distance_nm, paint_balls, photograph


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    """Leave out blur and noise."""
    for name in ("BLUR_NM", "NOISE"):
        monkeypatch.setattr(tissue, name, 0.0)


def test_the_distance_to_the_border_follows_the_voxel_size():
    labels = np.ones((4, 6, 8), np.uint64)
    labels[..., 4:] = 2
    distance_nm = border_distance_nm(labels, (30.0, 10.0, 5.0))
    assert distance_nm[0, 0].tolist() == [15, 10, 5, 0, 0, 5, 10, 15]


SHAPE = (16, 40, 48)


def test_grey_levels_are_rounded_and_balls_painted_by_their_depth():
    grey = np.broadcast_to(np.linspace(-20.0, 280.0, SHAPE[2]), SHAPE)
    found = photograph(grey.astype(np.float32), SynthConfig(shape_zyx=SHAPE), np.random.default_rng(0))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.clip(np.rint(grey), 0, 255))
    config = SynthConfig(shape_zyx=(16, 16, 16), voxel_size_zyx_nm=(20.0, 10.0, 10.0))
    depth_nm = paint_balls(config, np.array([[50.0, 45.0, 45.0]]), np.array([35.0]))
    assert depth_nm[2, 4, 4] == pytest.approx(35)
    assert depth_nm[3, 4, 4] == pytest.approx(15)
    assert depth_nm[2, 4, 6] == pytest.approx(15)
    assert depth_nm[2, 4, 8] == 0
