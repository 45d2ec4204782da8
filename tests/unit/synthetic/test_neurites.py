import numpy as np
import pytest

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.neurites import MAX_SQUEEZE, STEP_NM, PowerDiagram, grow_neurites

CONFIG = SynthConfig(shape_zyx=(64, 88, 104))


def test_the_radii_of_neurites_stay_in_the_configured_range():
    paths = grow_neurites(CONFIG, np.random.default_rng(0))
    radii_nm = np.concatenate([path.radii_nm for path in paths])
    low, high = CONFIG.neurite_radius_nm
    assert low <= radii_nm.min() < 1.2 * low
    assert 0.8 * high < radii_nm.max() <= high


def test_neurites_shorter_than_the_limit_are_left_out(monkeypatch):
    grown = []
    for limit_nm in (0.0, 800.0):
        monkeypatch.setattr("ffn.synthetic.neurites.MIN_NEURITE_NM", limit_nm)
        grown.append(grow_neurites(SynthConfig(shape_zyx=(32, 40, 48)), np.random.default_rng(0)))
    everything, kept = grown
    length_nm: dict[int, float] = {}
    for path in everything:
        length_nm[path.neurite_id] = length_nm.get(path.neurite_id, 0.0) + STEP_NM * len(path.points_nm)
    long = {number for number, length in length_nm.items() if length >= 800}
    assert {path.neurite_id for path in kept} == long
    assert 0 < len(long) < len(length_nm)


def test_neurites_grow_around_each_other(monkeypatch):
    """A tip may press into a neighbour by a share of its radius, and radii vary, but axes stay apart."""
    monkeypatch.setattr("ffn.synthetic.neurites.VARICOSITY", 0.0)
    monkeypatch.setattr("ffn.synthetic.neurites.BRANCH_SPACING_NM", 1e9)
    paths = grow_neurites(SynthConfig(shape_zyx=(48, 48, 48)), np.random.default_rng(0))
    for number, path in enumerate(paths):
        for other in paths[:number]:
            gaps_nm = np.linalg.norm(path.points_nm[:, None] - other.points_nm[None], axis=-1)
            assert gaps_nm.min() > (1 - MAX_SQUEEZE) * path.radii_nm[0] + 0.9 * other.radii_nm[0]


def test_owners_agree_with_the_definition():
    rng = np.random.default_rng(0)
    points, radii, places = (
        rng.uniform(0, 100, (30, 3)),
        rng.uniform(1, 20, 30),
        rng.uniform(0, 100, (200, 3)),
    )
    power = ((places[:, None] - points) ** 2).sum(axis=-1) - radii**2
    diagram = PowerDiagram(points, radii)
    assert diagram.owner(places).tolist() == power.argmin(axis=1).tolist()
    on_surface = points[:1] + np.array([[radii[0], 0, 0]])
    assert PowerDiagram(points[:1], radii[:1]).clearance_nm(on_surface) == pytest.approx([0.0])


def test_without_balls_the_clearance_is_infinite():
    assert np.isinf(PowerDiagram(np.empty((0, 3)), np.empty(0)).clearance_nm(np.zeros((2, 3)))).all()
