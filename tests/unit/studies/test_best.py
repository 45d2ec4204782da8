"""The runs at the best rates, and the modelled time of their steps."""

import json

import numpy as np
import pytest

from ffn.errors import EvaluationError
from ffn.studies.best import read_best_runs

from .conftest import STEPS, WORKERS, write_metrics


@pytest.fixture
def rates(tmp_path):
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"best_rates": {workers: 4e-4 for workers in WORKERS}}))
    return str(path)


def test_the_slowest_node_is_slower_by_a_factor_and_the_exchange_takes_its_time(grid, rates, tmp_path):
    scaling = {"nodes": [1, 16], "here": {"step_seconds": [0.1, 0.9]}, "exchange_seconds": [0.0, 0.4]}
    scaling |= {"network": {"name": "aries"}, "fit": {"mean_seconds": 0.1}}
    (tmp_path / "scaling.json").write_text(json.dumps(scaling))
    best = read_best_runs(grid, rates, f"{tmp_path}/scaling.json", smoothing=0.9)
    assert {workers: [run.seed for run in runs] for workers, runs in best.runs.items()} == {w: [1, 2] for w in WORKERS}
    expected = 0.05 * np.array([1, 2, 3, 4]) + [0.0, 0.1, 0.2, 0.3]  # linear in the logarithm of the nodes
    np.testing.assert_allclose([best.step_seconds[w] for w in WORKERS], expected, rtol=1e-6)
    assert best.runs[1][0].step.tolist() == STEPS.tolist() and "network 'aries'" in best.time_statement


@pytest.mark.parametrize(("processes", "one"), [(1, 0.05 / 4), (2, 0.04 / 2), (4, 0.04)])
def test_a_step_of_one_worker_is_that_of_a_process_without_its_exchange_over_its_workers(processes, one, tmp_path):
    (tmp_path / "rates.json").write_text(json.dumps({"best_rates": {"4": 4e-4, "8": 4e-4}}))
    scaling = {"nodes": [1, 16], "here": {"step_seconds": [0.1, 0.1]}, "exchange_seconds": [0.0, 0.0]}
    (tmp_path / "scaling.json").write_text(
        json.dumps(scaling | {"network": {"name": "aries"}, "fit": {"mean_seconds": 0.1}})
    )
    names = [f"workers-{workers}-seed-{seed}.csv" for workers in (4, 8) for seed in (1, 2)]
    shared = {"allreduce_ms": 10.0, "processes": processes}
    runs = [write_metrics(tmp_path / name, 0.9, 1, **shared) for name in names]
    best = read_best_runs(runs, f"{tmp_path}/rates.json", f"{tmp_path}/scaling.json", smoothing=0.9)
    assert best.step_seconds == pytest.approx({4: one, 8: one})


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": [1]}'])
def test_another_file_is_not_a_scaling_study(text, grid, rates, tmp_path):
    (tmp_path / "scaling.json").write_text(text)
    with pytest.raises(EvaluationError, match="scaling.json: is not a scaling study .*, expected output of 'ffn study"):
        read_best_runs(grid, rates, f"{tmp_path}/scaling.json", smoothing=0.9)
