"""The grid of learning rates, and the best rate of each number of workers."""

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.studies.learning_rate import best_rate, best_rates, score_grid, study_learning_rate
from ffn.studies.runs import read_runs

from .conftest import CONFIG, RATES, STEPS, write_metrics


def test_a_diverged_run_is_a_result_and_a_missing_run_an_error(grid, tmp_path):
    short = tmp_path / f"workers-8-rate-{float(RATES[-1])!r}-seed-1.csv"
    write_metrics(short, 0.5, 1, STEPS[:0])
    runs = read_runs(grid, 0.9)
    scores, noise = score_grid(runs, "f1", CONFIG)
    assert np.isnan(scores[3, -1]) and np.isfinite(scores[:3]).all()
    assert ((noise > 0) & (noise < 0.01)).all()
    with pytest.raises(EvaluationError, match="no run of 2 workers at rate 0.0001"):
        score_grid([run for run in runs if (run.workers, run.rate) != (2, 1e-4)], "f1", CONFIG)


def test_a_number_of_workers_that_diverges_at_every_rate_is_an_error(grid, tmp_path):
    for path in tmp_path.glob("workers-8-rate-*"):
        write_metrics(path, 0.5, 1, STEPS[:0])
    tried = [path for path in grid if "-rate-" in path]
    with pytest.raises(EvaluationError, match="study.learning_rates: training with 8 workers diverged at all of"):
        study_learning_rate(tried, f"{tmp_path}/rates.json", CONFIG, rng_seed=1)


def test_the_best_rates_are_read_from_a_study(tmp_path):
    study = tmp_path / "rates.json"
    study.write_text('{"best_rates": {"1": 0.001, "4": 0.002}}')
    assert best_rates(str(study)) == {1: 0.001, 4: 0.002} and best_rate(str(study), 4) == 0.002
    with pytest.raises(EvaluationError, match=r"--workers: found 2, expected one of those in .*: \[1, 4\]"):
        best_rate(str(study), 2)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"best_rates": {"one": 1}}'])
def test_another_file_is_not_a_study_of_the_learning_rate(text, tmp_path):
    (tmp_path / "rates.json").write_text(text)
    with pytest.raises(EvaluationError, match="rates.json: has no best rates .*, expected output of 'ffn study learn"):
        best_rates(f"{tmp_path}/rates.json")
