import numpy as np
import pytest

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.microscope import photograph

SHAPE = (16, 40, 48)
CLEAN = {"shape_zyx": SHAPE, "blur_nm": 0.0, "noise": 0.0, "defect_position": None}


def image(tissue, **options):
    return photograph(tissue.astype(np.float32), SynthConfig(**{**CLEAN, **options}), np.random.default_rng(0))


def stripes():
    return np.broadcast_to(np.where(np.arange(SHAPE[2]) // 4 % 2, 150.0, 80.0), SHAPE)


def test_without_blur_and_noise_grey_levels_are_rounded_and_clipped():
    tissue = np.broadcast_to(np.linspace(-20.0, 280.0, SHAPE[2]), SHAPE)
    found = image(tissue)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.clip(np.rint(tissue), 0, 255))


def test_noise_grows_with_brightness():
    spread = [image(np.full(SHAPE, grey), noise=7.0, cytoplasm_grey=150.0).std() for grey in (40.0, 150.0)]
    assert spread[1] == pytest.approx(7.0, rel=0.05)
    assert spread[0] == pytest.approx(7.0 * np.sqrt(40 / 150), rel=0.05)


def test_the_blur_follows_the_voxel_size():
    tissue = np.zeros(SHAPE)
    tissue[8, 20, 24] = 60_000.0
    found = image(tissue, blur_nm=20.0, voxel_size_zyx_nm=(40.0, 10.0, 10.0))
    across, along = (np.flatnonzero(line).size for line in (found[:, 20, 24], found[8, :, 24]))
    assert across < along


@pytest.mark.parametrize(("position", "section"), [(0.0, 0), (0.3, 4), (1.0, 15)])
def test_only_the_defective_section_is_darker_and_flatter(position, section):
    found = image(stripes(), defect_position=position, defect_noise=0.0, defect_darkening=35.0, defect_contrast=0.3)
    clean = image(stripes())
    assert np.flatnonzero((found != clean).any(axis=(1, 2))).tolist() == [section]
    assert found[section].mean() == pytest.approx(clean[section].mean() - 35, abs=1)
    assert np.ptp(found[section]) == pytest.approx(0.3 * 70, abs=1)
