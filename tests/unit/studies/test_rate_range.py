"""The range test of the learning rate, on losses whose steepest fall is known."""

import json

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.studies.config import StudyConfig
from ffn.studies.rate_range import range_test, study_rate_range
from ffn.training.monitoring.metrics import COLUMNS

CONFIG = StudyConfig(workers=(1, 4), ramp_steps=400)
RATES = np.geomspace(1e-6, 0.1, 100)


def losses(steepest, rates=RATES, noise=0.02):
    """Loss of a training that learns around a rate and diverges two decades above it."""
    fall = 1 / (1 + (steepest / rates) ** 2)
    return (
        1 - 0.6 * fall + (rates / (100 * steepest)) ** 4 + noise * np.random.default_rng(1).standard_normal(len(rates))
    )


def write(path, values, last=400):
    lines = [",".join(COLUMNS)]
    for step, rate, loss in zip(np.linspace(4, last, len(values)).astype(int), RATES, values, strict=False):
        row = dict.fromkeys(COLUMNS, 0.5) | {"step": step, "learning_rate": rate, "loss": loss}
        lines.append(",".join(str(row[name]) for name in COLUMNS))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("steepest", [1e-5, 1e-4, 1e-3])
def test_the_steepest_fall_is_found_in_noise(steepest):
    found = range_test(RATES, losses(steepest))
    assert found.steepest == pytest.approx(steepest, rel=0.6)
    assert 3 * steepest < found.lowest < 100 * steepest
    assert found.diverged == (steepest < 1e-3)


def test_what_comes_after_a_loss_that_is_not_finite_does_not_count():
    values = losses(1e-4)
    values[70:] = np.nan
    found = range_test(RATES, values)
    assert found.diverged and len(found.rates) <= 70 and found.steepest == pytest.approx(1e-4, rel=0.6)
    assert range_test(RATES[:0], values[:0], is_whole=False).steepest is None


def test_a_loss_that_only_rises_has_no_best_rate():
    found = range_test(RATES, np.linspace(0.5, 1, 100))
    assert (found.steepest, found.lowest, found.diverged) == (None, None, False)


def test_the_study_has_a_test_for_each_number_of_workers(tmp_path):
    paths = [
        write(tmp_path / "workers-4-rate-0.1-seed-1.csv", losses(1e-3)[:60], last=240),
        write(tmp_path / "workers-1-rate-0.1-seed-1.csv", losses(1e-3)),
    ]
    study_rate_range(paths, f"{tmp_path}/rate_range.json", CONFIG)
    study = json.loads((tmp_path / "rate_range.json").read_text())
    assert list(study["tests"]) == ["1", "4"]
    assert [test["diverged"] for test in study["tests"].values()] == [False, True]
    assert "With 1 workers the loss falls fastest at a rate of 0.001" in study["statements"][0]
    assert (tmp_path / "rate_range.png").stat().st_size and (tmp_path / "rate_range.html").stat().st_size


def test_a_file_without_rates_is_no_range_test(tmp_path):
    path = tmp_path / "workers-1-rate-0.1-seed-2.csv"
    path.write_text("step,loss\n1,0.5\n")
    with pytest.raises(EvaluationError, match=f"{path}: has no column learning_rate, expected output of 'ffn study"):
        study_rate_range([str(path)], f"{tmp_path}/out.json", CONFIG)
