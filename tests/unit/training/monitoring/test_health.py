"""Trainings that went wrong are told from those that did not."""

import math

import pytest

from ffn.training.monitoring.metrics import NUM_ROWS, RowLog, complaints, read_complaints


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
    ],
)
def test_a_collapse_and_a_constant_answer_are_named(metrics, validation, kinds):
    assert list(complaints(metrics, validation)) == kinds


def test_complaints_are_read_from_the_tables_of_a_training(tmp_path):
    assert read_complaints(tmp_path) == []
    log = RowLog(tmp_path / "validation.csv", ("step", "f1"), -1)
    for row in scores(0.87, 6e-5):
        log.write(row | {"step": int(row["step"])})
    (complaint,) = read_complaints(tmp_path)
    assert complaint.startswith("validation F1 fell from 0.87 after step 0 to 6e-05 after step 100")
