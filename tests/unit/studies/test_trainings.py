"""Trainings for the studies; the training itself is a stand-in."""

import json

import pytest

from ffn.config import ModelConfig
from ffn.errors import DivergenceError, EvaluationError, TrainError
from ffn.io import atomic
from ffn.studies import runs
from ffn.studies.runs import train_point
from ffn.training.config import TrainConfig
from ffn.training.plan import Training, TrainingData

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

    monkeypatch.setattr(runs, "train", train)
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


def test_other_ranks_write_nothing_and_end_well_if_the_run_diverged(monkeypatch, tmp_path):
    def train(*arguments, **options):
        raise SystemExit(2) from cause

    monkeypatch.setattr(runs, "train", train)
    monkeypatch.setenv("HOROVOD_RANK", "1")
    out = tmp_path / "metrics.csv"
    cause = DivergenceError("the loss is not finite")
    train_point(TRAINING, str(tmp_path), str(out))
    cause = TrainError("another reason")
    with pytest.raises(SystemExit):
        train_point(TRAINING, str(tmp_path), str(out))
    assert not out.exists()
