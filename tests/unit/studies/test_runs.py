"""The runs of a study: their options, their scores, and how certain they are."""

import argparse
import json
import math

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ConfigError, DivergenceError, EvaluationError
from ffn.io import atomic
from ffn.options import from_arguments
from ffn.studies import runs as module
from ffn.studies.config import StudyConfig
from ffn.studies.runs import read_runs, runs_at_best, train_point
from ffn.training.config import TrainConfig
from ffn.training.plan import Training, TrainingData

from .conftest import run_of


def test_a_row_without_a_score_is_no_divergence():
    run = run_of([0.5, 0.6, np.nan])
    assert run.at("f1", 300) == run.at("f1", 200) == 0.6 and run.at("f1", 100) == 0.5
    assert math.isnan(run.at("f1", 400)) and math.isnan(run_of([np.nan]).at("f1", 100))


def test_the_best_runs_are_those_of_the_grid_and_of_further_seeds():
    runs = [run_of([0.5], 2, rate, seed) for rate, seed in ((1e-3, 1), (2e-3, 1), (None, 3), (None, 2))]
    found = runs_at_best(runs, {2: 2e-3})[2]
    assert [(run.rate, run.seed) for run in found] == [(2e-3, 1), (None, 2), (None, 3)]
    with pytest.raises(EvaluationError, match="2 workers .*0.002"):
        runs_at_best(runs[:2], {2: 2e-3})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.csv", "", "metrics.csv"),
        ("workers-1-seed-9.csv", None, "workers-1-seed-9.csv"),
        ("workers-1-seed-8.csv", "step,f1,seconds\n5,0.5,1.0\n", "workers-1-seed-8.csv: .*accuracy"),
    ],
)
def test_a_file_that_holds_no_run_is_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_runs([f"{tmp_path}/{name}"])


@pytest.mark.parametrize(
    ("changes", "message"), [({"workers": (4, 2)}, "workers"), ({"max_nodes": 8}, r"max_nodes: 8 .*\(16\)")]
)
def test_a_contradiction_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_arguments(StudyConfig, argparse.Namespace(**changes))


CONFIG = TrainConfig(num_workers=2, virtual_workers=4, learning_rate=1e-3)
TRAINING = Training(TrainingData("records", {}), ModelConfig(), CONFIG, rng_seed=3)


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Return the configurations that were trained; every training diverges after its first row of metrics."""
    configs = []

    def train(training, folder, machine):
        assert machine == f"{tmp_path}/machine"  # one for all runs, which are compared
        configs.append(training.config)
        atomic.write_text(f"{folder}/metrics.csv", "step\n1\n")
        raise DivergenceError("the loss is not finite")

    monkeypatch.setattr(module, "train", train)
    return configs


def test_a_run_that_diverges_leaves_its_metrics(trained, tmp_path):
    out = tmp_path / "metrics.csv"
    train_point(TRAINING, str(tmp_path), str(out))
    assert out.read_text() == "step\n1\n"
    assert (tmp_path / "workers-8-rate-0.001-seed-3").is_dir() and trained == [CONFIG]


def test_the_best_rate_for_that_many_workers_replaces_the_configured_one(trained, tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"best_rates": {"2": 1e-4, "8": 4e-3}}))
    out = str(tmp_path / "metrics.csv")
    train_point(TRAINING, str(tmp_path), out, str(rates))
    assert trained[0].learning_rate == 4e-3
    assert (tmp_path / "workers-8-rate-0.004-seed-3").is_dir()
    rates.write_text(json.dumps({"best_rates": {"2": 1e-4}}))
    with pytest.raises(EvaluationError, match="--workers: found 8"):
        train_point(TRAINING, str(tmp_path), out, str(rates))
