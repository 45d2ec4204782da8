import numpy as np
import pytest

from ffn.synthetic.power_diagram import PowerDiagram


def test_owners_agree_with_the_definition() -> None:
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


def test_without_balls_the_clearance_is_infinite() -> None:
    assert np.isinf(PowerDiagram(np.empty((0, 3)), np.empty(0)).clearance_nm(np.zeros((2, 3)))).all()
