"""Line charts."""

import numpy as np
import pytest

from ffn.report.charts import Line, line_chart, stacked, ticks

from .conftest import curves


def test_areas_are_stacked():
    low, high = stacked(np.arange(2.0), {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 1.0])})
    assert low.base.tolist() == [0, 0] and high.base.tolist() == low.y.tolist() == [1, 2]
    assert high.y.tolist() == [4, 3]


def test_a_curve_lies_inside_its_frame():
    y = np.array([3.0, np.nan, -7.0, 12.0])
    svg = line_chart([Line("a", np.arange(4.0), y, "s0")], "t", "step")
    (points,) = curves(svg)
    assert len(points) == 3
    assert points[1][1] > points[0][1] > points[2][1]  # downwards on the screen
    assert all(46 <= x <= 462 and 10 <= y <= 230 for x, y in points)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.003, 0.0041), (-7, 12), (5, 5), (0, 0), (1e5, 3e6)])
def test_ticks_enclose_the_data(low, high):
    values = ticks(low, high)
    assert values[0] <= low and high <= values[-1]
    assert 2 <= len(values) <= 8
    assert np.allclose(np.diff(values), values[1] - values[0])
