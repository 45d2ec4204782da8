"""Trainings for the studies; the training itself is a stand-in."""

import json
import os

import pytest

from ffn.config import ModelConfig
from ffn.errors import DivergenceError, TrainError
from ffn.io import atomic
from ffn.studies import trainings
from ffn.studies.trainings import _keep_to_cores, train_point
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

    monkeypatch.setattr(trainings, "train", train)
    return configs


def test_a_run_that_diverges_leaves_its_metrics(trained, tmp_path):
    out = tmp_path / "metrics.csv"
    train_point(TRAINING, str(tmp_path), str(out))
    assert out.read_text() == "step,processes\n1,2\n"
    assert (tmp_path / "workers-8-rate-0.001-seed-3").is_dir() and trained == [CONFIG]


def test_the_best_rate_for_that_many_workers_replaces_the_configured_one(trained, tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"best_rates": {"2": 1e-4, "8": 4e-3}}))
    out = str(tmp_path / "metrics.csv")
    train_point(TRAINING, str(tmp_path), out, str(rates))
    assert trained[0].learning_rate == 4e-3
    assert (tmp_path / "workers-8-rate-0.004-seed-3").is_dir()


def test_other_ranks_write_nothing_and_end_well_if_the_run_diverged(monkeypatch, tmp_path):
    def train(*arguments, **options):
        raise SystemExit(2) from cause

    monkeypatch.setattr(trainings, "train", train)
    monkeypatch.setenv("HOROVOD_RANK", "1")
    out = tmp_path / "metrics.csv"
    cause = DivergenceError("the loss is not finite")
    train_point(TRAINING, str(tmp_path), str(out))
    cause = TrainError("another reason")
    with pytest.raises(SystemExit):
        train_point(TRAINING, str(tmp_path), str(out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("num_workers", "threads", "kept"), [(1, 2, [{3, 5}]), (1, 0, []), (1, 4, []), (2, 2, [])]
)  # all cores where threads follow from them, or where other processes take the rest
def test_a_single_process_keeps_to_as_many_cores_as_threads(num_workers, threads, kept, monkeypatch):
    set_to = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7, 5, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: set_to.append(set(cores)))
    _keep_to_cores(TrainConfig(num_workers=num_workers, intra_op_threads=threads))
    assert set_to == kept
