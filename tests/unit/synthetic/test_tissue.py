import numpy as np

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path
from ffn.synthetic.tissue import border_distance_nm, stain

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
