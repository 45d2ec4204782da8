"""The study of staleness: it trains as `ffn train` does, in virtual time."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.studies import staleness
from ffn.studies.config import StalenessConfig
from ffn.studies.scaling import Cluster, Interconnect
from ffn.studies.staleness import FACTORS, SEEDS, WAYS, VirtualCluster, study_staleness, train_virtually
from ffn.training.config import TrainConfig
from ffn.training.loop import Interruption, run
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import Training, ValidationSource
from ffn.training.train import training_job

from .conftest import weights_of

pytestmark = pytest.mark.usefixtures("no_launcher")

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3), image_mean=120, image_stddev=30)
WORKERS = 4
TRAIN = TrainConfig(
    num_workers=1,
    virtual_workers=WORKERS,
    max_steps=3,
    validation_steps=1,
    validation_examples=2,
    permutable_axes=(),
    engine="tensorflow",
    precision="float32",
)
NETWORK = Interconnect(latency=0.5, bandwidth=100.0)


@pytest.fixture
def plan(data):
    with training_job(Training(data, MODEL, TRAIN, 3)) as (group, plan, _):
        plan.load_records(group)
        yield plan


@pytest.fixture
def train(plan):
    """Function that trains in one of the ways; a tenth of the gradients take five times as long."""

    def train(way, updates):
        nodes = Cluster(np.array([1.0, 1.1]), NETWORK, 1.0)
        result, learner = train_virtually(plan, VirtualCluster(nodes, 0.1, way, WORKERS, 1), updates)
        return result, weights_of(learner)

    return train


def test_synchronous_workers_have_the_weights_of_virtual_workers(plan, train, tmp_path):
    with Interruption() as interruption:
        _, weights = run(plan, None, tmp_path, ProcessGroup(), interruption)
    np.testing.assert_equal(train("synchronous", TRAIN.max_steps)[1], weights)


@pytest.mark.slow
def test_staleness_grows_to_the_other_workers_and_is_none_with_backups(train):
    assert train("asynchronous", 200)[0]["mean_staleness"] == pytest.approx(WORKERS - 1, abs=0.1)
    backup = train("backup", 20)[0]
    assert (backup["mean_staleness"], backup["updates"]) == (0, 20) and backup["dropped"] > 0


def test_messages_to_a_server_wait_for_each_other():
    nodes = Cluster(np.ones(1), NETWORK, 100.0)
    cluster = VirtualCluster(nodes, 0.0, "backup", 8, rng_seed=1)
    assert [cluster.delivered("in", at) for at in (0.0, 0.0, 0.5, 7.0)] == [1.5, 2.5, 3.5, 8.5]
    assert cluster.delivered("out", 0.0) == 1.5  # while others arrive
    cluster = VirtualCluster(nodes, 0.0, "synchronous", 8, rng_seed=1)
    for worker in range(8):
        cluster.begin(worker, 2.0, worker)
    arrived = [cluster.next() for _ in range(8)]
    assert arrived[0] == (3.0, None, []) and arrived[-1] == (3.0 + 2 * 7 * (0.5 + 1 / 8), [*range(8)], [*range(8)])


@pytest.mark.slow
def test_a_killed_study_continues_with_the_next_run(data, validation_boxes, tmp_path, monkeypatch):
    runs, out, limit = [], tmp_path / "staleness.json", 7

    def learn_best_at_the_highest_rate(plan, cluster, updates, validation):
        if len(runs) == limit:
            raise KeyboardInterrupt
        runs.append(plan.rng_seed)
        scores = {name: [0.1, 0.2 + plan.train.learning_rate] for name in ("f1", "accuracy")}
        return {"mean_staleness": 0.0, "diverged": False, "seconds": [1.0, 2.0], **scores}, None

    monkeypatch.setattr(staleness, "train_virtually", learn_best_at_the_highest_rate)
    files = f"{tmp_path}/b-raw.h5:raw", f"{tmp_path}/b-labels.h5:labels"
    validation = {"b": ValidationSource(*files, validation_boxes["b"].box)}
    training = Training(replace(data, validation=validation), MODEL, TRAIN, 3)
    with pytest.raises(KeyboardInterrupt):
        study_staleness(training, str(out), None, StalenessConfig())
    limit = None
    study_staleness(training, str(out), None, StalenessConfig())
    results = json.loads(out.read_text())["results"]
    assert [(row["way"], row["workers"]) for row in results] == [(way, n) for n in (2, 4) for way in WAYS]
    assert len(runs) == len(results) * (len(FACTORS) + SEEDS - 1)
    assert {row["rate"] for row in results} == {TRAIN.learning_rate * max(FACTORS)}
    assert out.with_suffix(".png").is_file()
