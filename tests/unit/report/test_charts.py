"""Curves of a training and of a sweep."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from ffn.report import charts
from ffn.report.charts import sweep_charts, training_charts
from ffn.report.run_folder import read_output
from ffn.training.metrics import read_metrics


@pytest.fixture
def drawn(monkeypatch):
    """Axes of all charts, by title."""
    found = {}

    def chart(title, draw, x_label="step", top=None):
        found[title] = Figure().subplots()
        draw(found[title])
        return charts.Chart(title, "")

    monkeypatch.setattr(charts, "chart", chart)
    return found


def curves(axes):
    return {line.get_label(): line.get_xydata() for line in axes.get_lines()}


def test_a_training_has_a_chart_for_each_set_of_columns(run, drawn):
    training_charts(read_metrics(run / "model/metrics.csv"), [{"step": 20, "loss": 0.6}])
    loss, shares = drawn.values()
    measured, _, validated = (line.get_xydata().tolist() for line in loss.get_lines())
    assert measured == [[10, 0.7], [20, 0.5], [30, 0.4]] and validated == [[20, 0.6]]
    assert {"accuracy", "F1"} <= curves(shares).keys()


def test_a_chart_has_no_empty_columns_and_parts_of_a_step_no_compilation(drawn):
    rows = [{"step": step, "loss": np.nan, "f1": 0.5} for step in (1, 2)]
    training_charts(rows, [{"step": 2, "f1": 0.8}])
    assert [list(curves(axes).values())[-1].tolist() for axes in drawn.values()] == [[[2, 0.8]]]
    assert training_charts([]) == []
    drawn.clear()
    parts = dict(zip(charts.STEP_PARTS, (1.0, 2.0, 3.0, 4.0), strict=True))
    training_charts([{"step": step, **parts} for step in (1, 2, 3)])
    (times,) = drawn.values()
    assert curves(times)["rest"].tolist() == [[2, 4], [3, 4]]


def test_a_sweep_is_drawn_with_no_merges_at_the_right_end(run, drawn):
    titles = [chart.title for chart in sweep_charts(read_output(run, "sweep", volume="cube")["sweep"])]
    assert len(titles) == len(set(titles)) == 4
    for axes in list(drawn.values())[::2]:
        both, split, merge = (curve[:, 1] for curve in curves(axes).values())  # falling threshold
        assert split[0] == split[1] > split[2] == split[3]  # 0.8 joins what was split
        assert merge[0] == merge[1] == merge[2] < merge[3]  # 0.4 joins two bodies
        assert both[1] > both[2]
    ((error,),) = (curves(axes).values() for axes in list(drawn.values())[1:2])
    assert error[0, 0] == 1 and (np.diff(error[:, 0]) < 0).all()
    assert sweep_charts({}) == [] and sweep_charts({"all": [{"threshold": 0.5, "voi": None, "are": None}]}) == []


def test_a_chart_has_the_same_bytes_every_time_and_names_no_other_file():
    one, other = (charts.chart("t", lambda axes: axes.plot([1, 2], [3, 4], label="a")) for _ in range(2))
    assert one == other and one.svg.startswith("<svg") and "a</text>" in one.svg
