"""One training run of the studies; the training itself is a stand-in."""

import json

import pytest

from ffn.config import ModelConfig
from ffn.errors import DivergenceError, TrainError
from ffn.io import atomic
from ffn.studies import point
from ffn.training.config import TrainConfig
from ffn.training.plan import TrainingData

CONFIG = TrainConfig(num_workers=2, virtual_workers=4, learning_rate=1e-3)


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Return the configurations that were trained; every training diverges after its first row of metrics."""
    configs = []

    def train(data, folder, model, config, rng_seed, machine):
        assert machine == f"{tmp_path}/machine"  # one for all runs, which are compared
        configs.append(config)
        atomic.write_text(f"{folder}/metrics.csv", "step\n1\n")
        raise DivergenceError("the loss is not finite")

    monkeypatch.setattr(point, "train", train)
    return configs


def test_a_run_that_diverges_leaves_its_metrics(trained, tmp_path):
    out = tmp_path / "metrics.csv"
    point.train_point(TrainingData("records", {}), str(tmp_path), str(out), ModelConfig(), CONFIG, rng_seed=3)
    assert out.read_text() == "step,processes\n1,2\n"
    assert (tmp_path / "workers-8-rate-0.001-seed-3").is_dir() and trained == [CONFIG]


def test_the_best_rate_for_that_many_workers_replaces_the_configured_one(trained, tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"best_rates": {"2": 1e-4, "8": 4e-3}}))
    out = str(tmp_path / "metrics.csv")
    point.train_point(TrainingData("records", {}), str(tmp_path), out, ModelConfig(), CONFIG, 3, str(rates))
    assert trained[0].learning_rate == 4e-3
    assert (tmp_path / "workers-8-rate-0.004-seed-3").is_dir()


def test_other_ranks_write_nothing_and_end_well_if_the_run_diverged(monkeypatch, tmp_path):
    def train(*arguments, **options):
        raise SystemExit(2) from cause

    monkeypatch.setattr(point, "train", train)
    monkeypatch.setenv("HOROVOD_RANK", "1")
    out, data = tmp_path / "metrics.csv", TrainingData("records", {})
    cause = DivergenceError("the loss is not finite")
    point.train_point(data, str(tmp_path), str(out), ModelConfig(), CONFIG, rng_seed=3)
    cause = TrainError("another reason")
    with pytest.raises(SystemExit):
        point.train_point(data, str(tmp_path), str(out), ModelConfig(), CONFIG, rng_seed=3)
    assert not out.exists()
