"""Metrics: scores, rows that survive a crash, step times, and signs that a training went wrong."""

import math

import numpy as np
import pytest

from ffn.training.metrics import (
    COLUMNS,
    NO_STEPS,
    NUM_ROWS,
    RowLog,
    classification_scores,
    complaints,
    means_of,
    read_metrics,
    sums_of,
)
from ffn.training.step import Outcome


def outcome(loss, finite=True):
    return Outcome(np.zeros(1), loss, finite, gradient_norm=2 * loss, bytes_sent=100)


def test_skipped_steps_count_in_bytes_only_and_empty_scores_are_0_or_nan():
    assert classification_scores(np.array([0, 0, 5, 5])) == {"accuracy": 0.5, "precision": 0, "recall": 0, "f1": 0}
    assert all(np.isnan(value) for value in classification_scores(np.zeros(4, np.int64)).values())
    sums = sums_of(outcome(0.5)) + sums_of(outcome(0.25)) + sums_of(outcome(math.nan, finite=False))
    assert means_of(sums) == {"loss": 0.375, "gradient_norm": 0.75, "bytes_sent": 100, "skipped_steps": 1}
    assert np.isnan(means_of(NO_STEPS)["loss"])


def test_rows_after_the_step_and_an_incomplete_line_are_removed(tmp_path):
    path = tmp_path / "rows.csv"
    for step in (10, 20, 30):
        RowLog(path, ("step", "loss"), step).write({"step": step, "loss": 1 / step})
    with path.open("a") as file:
        file.write("40,0.")
    log = RowLog(path, ("step", "loss"), 20)
    assert [row["step"] for row in log.rows] == [10, 20]
    log.write({"step": 30, "loss": 0.125})
    assert path.read_text() == "step,loss\n10,0.1\n20,0.05\n30,0.125\n"


def test_incomplete_lines_are_skipped(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_metrics(path) == []
    whole = ",".join(["50", *["0.5"] * (len(COLUMNS) - 1)])
    path.write_text("loss\n0.5\n")
    assert read_metrics(path) == []
    for torn in ("100,0.", "10", "100," * (len(COLUMNS) - 1) + "-", "\n"):
        path.write_text(",".join(COLUMNS) + f"\n{whole}\n{torn}")
        assert [row["step"] for row in read_metrics(path)] == [50]


def rows(*losses):
    return [{"step": 50.0 * (i + 1), "loss": loss} for i, loss in enumerate(losses)]


def scores(*values):
    return [{"step": 100.0 * i, "f1": f1} for i, f1 in enumerate(values)]


@pytest.mark.parametrize(
    ("metrics", "validation", "kinds"),
    [
        ([], [], []),
        (rows(*[0.69] * NUM_ROWS), [], ["constant"]),
        (rows(0.3, 0.2, *[0.7] * NUM_ROWS), scores(0.9, 0.0), ["collapse", "constant"]),
        (rows(*[0.69] * (NUM_ROWS - 1)), scores(0.9, 0.5, 0.8), []),
        (rows(*[0.69] * (NUM_ROWS - 1), 0.6), scores(0.1, 0.0), []),  # there was nothing to lose
        (rows(*[math.nan] * NUM_ROWS), scores(0.9, math.nan), []),
        ([], scores(0.2, 0.9, 0.4), ["collapse"]),
        ([], scores(0.9, 0.1, 0.8), []),  # it recovered
        (rows(1.31, 6.1e16, 2.0), [], []),
        (rows(1.31, 6.8e7), [], ["risen"]),
        ([{**rows(0.5)[0], "skipped_steps": 2.0}], [], ["skipped"]),
    ],
)
def test_signs_of_trouble_are_named(metrics, validation, kinds):
    assert list(complaints(metrics, validation)) == kinds
