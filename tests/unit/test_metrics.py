"""Metrics: scores from counts, rows that survive a crash without duplicates."""

import numpy as np
import pytest

from ffn.training.metrics import COLUMNS, Accumulator, classification_scores, read_metrics


def test_scores_follow_their_definitions():
    scores = classification_scores(np.array([30, 10, 50, 20]))
    assert scores == {"accuracy": 80 / 110, "precision": 0.75, "recall": 0.6, "f1": pytest.approx(2 / 3)}


def test_scores_without_a_prediction_are_zero_and_without_voxels_unknown():
    assert classification_scores(np.array([0, 0, 5, 5])) == {
        "accuracy": 0.5,
        "precision": 0,
        "recall": 0,
        "f1": 0,
    }
    assert all(np.isnan(value) for value in classification_scores(np.zeros(4, np.int64)).values())


def test_accumulator_survives_a_checkpoint():
    accumulator = Accumulator()
    accumulator.add_step(0.5, True)
    accumulator.add_step(0.25, True)
    accumulator.add_step(float("nan"), False)
    accumulator.counts += np.arange(4)
    restored = Accumulator.from_arrays(accumulator.arrays())
    assert (restored.loss, restored.num_steps, restored.num_skipped) == (0.375, 2, 1)
    np.testing.assert_array_equal(restored.counts, np.arange(4))
    assert np.isnan(Accumulator().loss)


def test_read_metrics_leaves_out_a_torn_line(tmp_path):
    path = tmp_path / "metrics.csv"
    assert read_metrics(path) == []
    whole = ",".join(["50", *["0.5"] * (len(COLUMNS) - 1)])
    for torn in ("100,0.", "10", "100," * (len(COLUMNS) - 1) + "-", "\n"):
        path.write_text(",".join(COLUMNS) + f"\n{whole}\n{torn}")
        assert [row["step"] for row in read_metrics(path)] == [50]
