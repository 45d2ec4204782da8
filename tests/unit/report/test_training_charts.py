"""The curves of a training."""

import re

import numpy as np

from ffn.report.page import render
from ffn.report.training_charts import training_charts
from ffn.training.monitoring.metrics import read_metrics

from .conftest import Page


def test_there_is_a_chart_for_each_set_of_columns(run, tmp_path):
    loss, quality = training_charts(read_metrics(run / "model/metrics.csv"))
    assert [name for _, name, _ in quality.legend] == ["accuracy", "F1"]
    assert "nan" not in loss.svg + quality.svg
    assert training_charts(read_metrics(tmp_path / "metrics.csv")) == []
    assert training_charts([{"step": 1, "learning_rate": 0.1}]) == []


def test_charts_of_a_training_show_rate_speed_times_and_validation(tmp_path):
    (tmp_path / "model").mkdir()
    header = "step,loss,f1,learning_rate,fovs_per_second,input_ms,compute_ms,allreduce_ms,rest_ms"
    rows = ["10,2,0,0.1,4,500,500,500,500", "20,1,0.5,0.2,8,10,60,20,10", "30,0.5,0.75,0.2,8,10,60,20,10"]
    (tmp_path / "model/metrics.csv").write_text("\n".join([header, *rows, ""]))
    (tmp_path / "model/validation.csv").write_text("step,loss,f1\n0,3,0\n30,0.7,0.5\n")
    charts = training_charts(*(read_metrics(tmp_path / "model" / name) for name in ("metrics.csv", "validation.csv")))
    scores = "Accuracy, precision, recall, F1 (dots: validation)"
    titles = ["Loss", scores, "Learning rate", "FOVs/s", "Time of a step, ms"]
    assert [chart.title for chart in charts] == titles
    assert [chart.svg.count("<circle") for chart in charts] == [2, 2, 0, 0, 0]
    assert charts[0].legend[-1][1:] == ("validation", "dots")
    assert [name for _, name, _ in charts[4].legend] == ["input", "compute", "allreduce", "rest"]
    tops = [
        float(points.split()[0].split(",")[1]) for points in re.findall('<polygon[^>]* points="([^"]*)"', charts[4].svg)
    ]
    assert np.allclose((230 - np.array(tops)) / 220, [0.1, 0.7, 0.9, 1.0], atol=1e-3)  # without the first row
    page = Page(render(tmp_path))
    assert "dots: validation" in page.text and "Best validation: F1 0.500 after step 30;" in page.text
    assert not page.open


def test_reach_is_shown_by_distance_where_a_file_has_it():
    rows = [{"step": n, "reach_1": 0.9, "reach_2": 0.5, "reach_3": float("nan")} for n in (10, 20)]
    (reach,) = training_charts(rows, [{"step": 20, "reach_1": 0.8}])
    assert reach.title == "Share of the moves made, by distance (dots: validation)"
    assert [name for _, name, _ in reach.legend] == ["1 delta", "2 deltas"] and reach.svg.count("<circle") == 1
