import numpy as np
import pytest

from ffn.synthetic.texture import paint_balls, smooth_noise


def test_a_ball_is_painted_by_its_depth_in_nm() -> None:
    depth_nm = paint_balls((5, 9, 9), (20.0, 10.0, 10.0), np.array([[50.0, 45.0, 45.0]]), np.array([35.0]))
    assert depth_nm[2, 4, 4] == pytest.approx(35)
    assert depth_nm[3, 4, 4] == pytest.approx(15)
    assert depth_nm[2, 4, 6] == pytest.approx(15)
    assert depth_nm[2, 4, 8] == 0


def test_a_ball_outside_the_volume_paints_nothing() -> None:
    assert not paint_balls((4, 5, 6), (1.0, 1.0, 1.0), np.array([[-9.0, 2.0, 90.0]]), np.array([3.0])).any()


def test_noise_is_standardised_and_smooth() -> None:
    noise = smooth_noise((12, 20, 30), np.array([2.0, 2.0, 2.0]), np.random.default_rng(0))
    assert noise.mean() == pytest.approx(0, abs=1e-5)
    assert noise.std() == pytest.approx(1, abs=1e-5)
    assert np.abs(np.diff(noise, axis=2)).mean() < 0.5
