"""Metrics: scores from counts, smoothed curves, and rows that survive a crash without duplicates."""

import numpy as np
import pytest

from ffn.training.monitoring.metrics import COLUMNS, Accumulator, RowLog, classification_scores, read_metrics, smoothed
from ffn.training.step import Outcome


def outcome(loss, finite=True):
    return Outcome(np.zeros(1), loss, finite, gradient_norm=2 * loss, bytes_sent=100)


def test_scores_follow_their_definitions():
    scores = classification_scores(np.array([30, 10, 50, 20]))
    assert scores == {"accuracy": 80 / 110, "precision": 0.75, "recall": 0.6, "f1": pytest.approx(2 / 3)}


def test_scores_without_positives_are_0_and_without_voxels_nan():
    assert classification_scores(np.array([0, 0, 5, 5])) == {
        "accuracy": 0.5,
        "precision": 0,
        "recall": 0,
        "f1": 0,
    }
    assert all(np.isnan(value) for value in classification_scores(np.zeros(4, np.int64)).values())


def test_accumulator_survives_a_checkpoint():
    accumulator = Accumulator()
    for loss in (0.5, 0.25):
        accumulator.add_step(outcome(loss))
    accumulator.add_step(outcome(float("nan"), finite=False))
    restored = Accumulator.from_arrays(accumulator.arrays())
    assert restored.means() == {"loss": 0.375, "gradient_norm": 0.75, "bytes_sent": 100}
    assert restored.num_skipped == 1
    assert np.isnan(Accumulator().means()["loss"])


def test_smoothing_is_unbiased_and_skips_gaps():
    curve = smoothed(np.array([2.0, 2.0, np.nan, 4.0]), 0.5)
    assert curve[:2].tolist() == [2, 2] and np.isnan(curve[2])
    assert curve[3] == pytest.approx((4 * 0.5 + 2 * 0.25 + 2 * 0.125) / 0.875)


def test_rows_after_the_step_and_an_incomplete_line_are_removed(tmp_path):
    path = tmp_path / "rows.csv"
    for step in (10, 20, 30):
        RowLog(path, ("step", "loss"), step).write({"step": step, "loss": 1 / step})
    with path.open("a") as file:
        file.write("40,0.")
    log = RowLog(path, ("step", "loss"), 20)
    assert [row["step"] for row in log.kept] == [10, 20]
    log.write({"step": 30, "loss": 0.125})
    assert path.read_text() == "step,loss\n10,0.1\n20,0.05\n30,0.125\n"


def test_rows_that_are_read_back_are_written_unchanged(tmp_path):
    path = tmp_path / "rows.csv"
    RowLog(path, ("step", "bytes", "loss"), -1).write({"step": 10, "bytes": 12345678, "loss": 2 / 3})
    before = path.read_text()
    assert RowLog(path, ("step", "bytes", "loss"), 10).kept[0]["bytes"] == 12345678
    assert path.read_text() == before


def test_rows_of_an_earlier_version_get_all_columns(tmp_path):
    path = tmp_path / "rows.csv"
    RowLog(path, ("step", "old"), -1).write({"step": 10, "old": 1.0})
    RowLog(path, ("step", "loss"), 10).write({"step": 20, "loss": 0.5})
    assert path.read_text() == "step,loss\n10,nan\n20,0.5\n"


def test_incomplete_lines_are_skipped(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_metrics(path) == []
    whole = ",".join(["50", *["0.5"] * (len(COLUMNS) - 1)])
    path.write_text("loss\n0.5\n")
    assert read_metrics(path) == []
    for torn in ("100,0.", "10", "100," * (len(COLUMNS) - 1) + "-", "\n"):
        path.write_text(",".join(COLUMNS) + f"\n{whole}\n{torn}")
        assert [row["step"] for row in read_metrics(path)] == [50]
