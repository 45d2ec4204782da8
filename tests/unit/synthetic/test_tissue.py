import numpy as np
import pytest

from ffn.synthetic import tissue
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import Path
from ffn.synthetic.tissue import border_distance_nm, paint_balls, photograph, stain

LABELS = np.ones((32, 40, 48), np.uint64)
LABELS[:, 20:] = 2
CONFIG = SynthConfig(shape_zyx=LABELS.shape, defect_position=None)
CONTENT = (
    *("NEURITE_CONTRAST", "GRAIN_CONTRAST", "SHADING_CONTRAST", "WEAK_SPOTS_PER_UM3", "MITOCHONDRIA_PER_UM3"),
    *("VESICLE_CLUSTERS_PER_UM3", "BLUR_NM", "NOISE", "DEFECT_NOISE"),
)


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    """Leave out everything but cytoplasm and membranes."""
    for name in CONTENT:
        monkeypatch.setattr(tissue, name, 0.0)


@pytest.fixture
def stained(monkeypatch):
    """Function that stains two neurites with a flat membrane between y = 19 and y = 20."""

    def make(paths=(), **constants):
        with monkeypatch.context() as patch:
            for name, value in constants.items():
                patch.setattr(tissue, name, value)
            return stain(LABELS, list(paths), CONFIG, np.random.default_rng(0))

    return make


def test_the_distance_to_the_border_follows_the_voxel_size():
    labels = np.ones((4, 6, 8), np.uint64)
    labels[..., 4:] = 2
    distance_nm = border_distance_nm(labels, (30.0, 10.0, 5.0))
    assert distance_nm[0, 0].tolist() == [15, 10, 5, 0, 0, 5, 10, 15]


def test_stain_is_dark_at_membranes_and_bright_at_weak_spots(stained):
    grey = stained(MEMBRANE_NM=40.0, MEMBRANE_GREY=70.0, CYTOPLASM_GREY=150.0)
    profile = grey[10, 14:26, 7].tolist()
    assert profile == [150.0] * 4 + [70.0] * 4 + [150.0] * 4
    border = border_distance_nm(LABELS, (10.0, 10.0, 10.0)) == 0
    without, many = (stained(WEAK_SPOTS_PER_UM3=n)[border].mean() for n in (0.0, 500.0))
    assert many > without + 5
    near = border_distance_nm(LABELS, (10.0, 10.0, 10.0)) < 18
    without, many = stained(), stained(VESICLE_CLUSTERS_PER_UM3=500.0)
    assert many.mean() < without.mean() - 2
    np.testing.assert_array_equal(many[near], without[near])


def test_mitochondria_are_painted_in_thick_neurites_only(stained):
    along_x = np.arange(0.0, 480.0, 20.0)
    points_nm = np.stack([np.full_like(along_x, 160.0), np.full_like(along_x, 100.0), along_x], axis=1)
    thin, thick = (Path(1, points_nm, np.full_like(along_x, radius)) for radius in (50.0, 90.0))
    dark = stained([thick], MITOCHONDRIA_PER_UM3=100.0) < 100.0
    assert dark[16, 10].any() and not dark[:, 22:].any()
    np.testing.assert_array_equal(stained([thin], MITOCHONDRIA_PER_UM3=100.0), stained())


SHAPE = (16, 40, 48)


def image(grey, **options):
    config = SynthConfig(**{"shape_zyx": SHAPE, "defect_position": None, **options})
    return photograph(grey.astype(np.float32), config, np.random.default_rng(0))


def test_grey_levels_are_rounded_and_balls_painted_by_their_depth():
    grey = np.broadcast_to(np.linspace(-20.0, 280.0, SHAPE[2]), SHAPE)
    found = image(grey)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.clip(np.rint(grey), 0, 255))
    config = SynthConfig(shape_zyx=(16, 16, 16), voxel_size_zyx_nm=(20.0, 10.0, 10.0))
    depth_nm = paint_balls(config, np.array([[50.0, 45.0, 45.0]]), np.array([35.0]))
    assert depth_nm[2, 4, 4] == pytest.approx(35)
    assert depth_nm[3, 4, 4] == pytest.approx(15)
    assert depth_nm[2, 4, 6] == pytest.approx(15)
    assert depth_nm[2, 4, 8] == 0


@pytest.mark.parametrize(("position", "section"), [(0.0, 0), (0.3, 4), (1.0, 15)])
def test_only_the_defective_section_is_darker_and_flatter(position, section):
    stripes = np.broadcast_to(np.where(np.arange(SHAPE[2]) // 4 % 2, 150.0, 80.0), SHAPE)
    found, clean = image(stripes, defect_position=position), image(stripes)
    assert np.flatnonzero((found != clean).any(axis=(1, 2))).tolist() == [section]
    assert found[section].mean() == pytest.approx(clean[section].mean() - 35, abs=1)
    assert np.ptp(found[section]) == pytest.approx(0.3 * 70, abs=1)
