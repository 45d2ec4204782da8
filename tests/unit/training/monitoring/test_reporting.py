"""Reports of a running training, and how a resumed training continues them."""

import shutil

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import Model
from ffn.training.config import TrainConfig
from ffn.training.data.lanes import RecordShards
from ffn.training.monitoring.metrics import COLUMNS, read_metrics
from ffn.training.monitoring.reporting import FOLDER, VALIDATION_COLUMNS, open_report
from ffn.training.plan import TrainingPlan

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)
PLAN = TrainingPlan(TrainConfig(max_steps=40), 1, Model(MODEL, {}, {}), RecordShards([], [40], len), None, {})


def row(columns, step):
    """Return a row with scores that fall from the first step on."""
    return {**dict.fromkeys(columns, 0.5), "step": step, "f1": 0.5 - step / 100}


def weights():
    return {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(MODEL).items()}


@pytest.fixture
def reported(tmp_path):
    """Folder of a training with reports at steps 0, 10 and 20."""
    with open_report(0, tmp_path, PLAN, 0, same_examples=True) as report:
        for step in (0, 10, 20):
            report.training(row(COLUMNS, step))
            report.validation(row(VALIDATION_COLUMNS, step), weights)
    return tmp_path


def steps(folder, name):
    return [row["step"] for row in read_metrics(folder / name)]


def test_ranks_above_0_report_nothing(tmp_path):
    with open_report(1, tmp_path, PLAN, 0, same_examples=True) as report:
        report.training(row(COLUMNS, 10))
        report.validation(row(VALIDATION_COLUMNS, 10), weights)
        report.progress(10)
        assert not report.has_validated(10)
    assert not list(tmp_path.iterdir())


def test_a_collapse_is_said_once(tmp_path, caplog):
    def report_f1(report, *values):
        for step, f1 in values:
            report.validation({**row(VALIDATION_COLUMNS, step), "f1": f1}, weights)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    with open_report(0, tmp_path, PLAN, 0, same_examples=True) as report:
        assert report_f1(report, (0, 0.8), (10, 0.5)) == []
        (said,) = report_f1(report, (20, 0.3), (30, 0.2))
    assert said.startswith("train: validation F1 fell from 0.8 after step 0 to 0.3 after step 20")
    with open_report(0, tmp_path, PLAN, 30, same_examples=True) as report:
        assert report_f1(report, (40, 0.1)) == [said]


def test_a_resumed_report_keeps_the_rows_up_to_its_step(reported):
    with open_report(0, reported, PLAN, 10, same_examples=True) as report:
        assert report.has_validated(10) and not report.has_validated(20)
        assert steps(reported, "metrics.csv") == steps(reported, "validation.csv") == [0, 10]


def test_other_validation_examples_discard_the_validations_only(reported):
    with open_report(0, reported, PLAN, 20, same_examples=False) as report:
        assert not report.has_validated(20)
        assert steps(reported, "metrics.csv") == [0, 10, 20] and steps(reported, "validation.csv") == []


def test_the_last_step_is_validated_again_if_the_best_model_is_missing(reported):
    shutil.rmtree(reported / FOLDER)
    with open_report(0, reported, PLAN, 20, same_examples=True) as report:
        assert report.has_validated(10) and not report.has_validated(20)


def test_a_new_training_discards_all_rows(reported):
    with open_report(0, reported, PLAN, 0, same_examples=True) as report:
        assert not report.has_validated(0)
        assert steps(reported, "metrics.csv") == steps(reported, "validation.csv") == []
