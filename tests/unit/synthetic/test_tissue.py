import numpy as np
import pytest

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path
from ffn.synthetic.tissue import border_distance_nm, paint_balls, photograph, smooth_noise, stain

LABELS = np.ones((32, 40, 48), np.uint64)
LABELS[:, 20:] = 2
FLAT = {
    "shape_zyx": LABELS.shape,
    "neurite_contrast": 0.0,
    "grain_contrast": 0.0,
    "shading_contrast": 0.0,
    "weak_spots_per_um3": 0.0,
    "mitochondria_per_um3": 0.0,
    "vesicle_clusters_per_um3": 0.0,
}


def tissue(paths=(), **options):
    """Stain two neurites with a flat membrane between y = 19 and y = 20, without noise."""
    return stain(LABELS, list(paths), SynthConfig(**{**FLAT, **options}), np.random.default_rng(0))


def test_the_distance_to_the_border_follows_the_voxel_size():
    labels = np.ones((4, 6, 8), np.uint64)
    labels[..., 4:] = 2
    distance_nm = border_distance_nm(labels, (30.0, 10.0, 5.0))
    assert distance_nm[0, 0].tolist() == [15, 10, 5, 0, 0, 5, 10, 15]


def test_a_membrane_is_dark_and_as_thick_as_configured():
    grey = tissue(membrane_nm=40.0, membrane_grey=70.0, cytoplasm_grey=150.0)
    profile = grey[10, 14:26, 7].tolist()
    assert profile == [150.0] * 4 + [70.0] * 4 + [150.0] * 4


def test_weak_spots_brighten_membranes():
    border = border_distance_nm(LABELS, (10.0, 10.0, 10.0)) == 0
    without, many = (tissue(weak_spots_per_um3=n)[border].mean() for n in (0.0, 500.0))
    assert many > without + 5


def test_vesicles_darken_the_inside_and_stay_away_from_membranes():
    near = border_distance_nm(LABELS, (10.0, 10.0, 10.0)) < 18
    without, many = tissue(), tissue(vesicle_clusters_per_um3=500.0)
    assert many.mean() < without.mean() - 2
    np.testing.assert_array_equal(many[near], without[near])


def test_mitochondria_are_painted_in_thick_neurites_only():
    along_x = np.arange(0.0, 480.0, 20.0)
    points_nm = np.stack([np.full_like(along_x, 160.0), np.full_like(along_x, 100.0), along_x], axis=1)
    thin, thick = (Path(1, points_nm, np.full_like(along_x, radius)) for radius in (50.0, 90.0))
    dark = tissue([thick], mitochondria_per_um3=100.0) < 100.0
    assert dark[16, 10].any() and not dark[:, 22:].any()
    np.testing.assert_array_equal(tissue([thin], mitochondria_per_um3=100.0), tissue())


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
def test_only_the_defective_section_is_darker_and_flatter(position, section, monkeypatch):
    monkeypatch.setattr("ffn.synthetic.tissue.DEFECT_NOISE", 0.0)
    found = image(stripes(), defect_position=position, defect_contrast=0.3)
    clean = image(stripes())
    assert np.flatnonzero((found != clean).any(axis=(1, 2))).tolist() == [section]
    assert found[section].mean() == pytest.approx(clean[section].mean() - 35, abs=1)
    assert np.ptp(found[section]) == pytest.approx(0.3 * 70, abs=1)


def test_a_ball_is_painted_by_its_depth_in_nm():
    depth_nm = paint_balls((5, 9, 9), (20.0, 10.0, 10.0), np.array([[50.0, 45.0, 45.0]]), np.array([35.0]))
    assert depth_nm[2, 4, 4] == pytest.approx(35)
    assert depth_nm[3, 4, 4] == pytest.approx(15)
    assert depth_nm[2, 4, 6] == pytest.approx(15)
    assert depth_nm[2, 4, 8] == 0


def test_noise_is_standardised_and_smooth():
    noise = smooth_noise((12, 20, 30), np.array([2.0, 2.0, 2.0]), np.random.default_rng(0))
    assert noise.mean() == pytest.approx(0, abs=1e-5)
    assert noise.std() == pytest.approx(1, abs=1e-5)
    assert np.abs(np.diff(noise, axis=2)).mean() < 0.5
