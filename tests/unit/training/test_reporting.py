"""Reports of a running training: what is said, TensorBoard, and the best model."""

import contextlib

import numpy as np

from ffn.config import ModelConfig
from ffn.model.network import weight_shapes
from ffn.model.store import Model
from ffn.training.config import TrainConfig
from ffn.training.data.lanes import RecordShards
from ffn.training.metrics import SCORES
from ffn.training.plan import TrainingPlan
from ffn.training.reporting import VALIDATION_COLUMNS, Events, Report

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)
PLAN = TrainingPlan(TrainConfig(max_steps=40), 1, Model(MODEL, {}, {}), RecordShards([], [40], len), None, {})


def row(columns, step):
    """Return a row with scores that fall from the first step on."""
    return {**dict.fromkeys(columns, 0.5), "step": step, "f1": 0.5 - step / 100}


def weights(value=0):
    return {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(MODEL).items()}


def test_a_collapse_is_said_once(tmp_path, caplog):
    def report_f1(report, *values):
        for step, f1 in values:
            report.validation({**row(VALIDATION_COLUMNS, step), "f1": f1}, weights)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    with contextlib.closing(Report(tmp_path, PLAN, 0, same_examples=True)) as report:
        assert report_f1(report, (0, 0.8), (10, 0.5)) == []
        (said,) = report_f1(report, (20, 0.3), (30, 0.2))
    assert said.startswith("train: validation F1")
    with contextlib.closing(Report(tmp_path, PLAN, 30, same_examples=True)) as report:
        assert report_f1(report, (40, 0.1)) == [said]


def scalars(step, loss):
    return {"step": step, "loss": loss, **dict.fromkeys(SCORES, 0.5)}


def read_events(folder):
    """Return the events of a run: values of every tag by step."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found = {}
    for path in sorted(folder.glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = tensor_util.make_ndarray(value.tensor)
    return found


def test_training_and_validation_share_their_plots(tmp_path):
    with contextlib.closing(Events(tmp_path)) as events:
        events.write("train", scalars(10, 2.0))
        events.write("train", scalars(20, 4.0))
        events.write("validation", scalars(10, 3.0))
    train, validation = read_events(tmp_path / "train"), read_events(tmp_path / "validation")
    assert train["loss"] == {10: 2.0, 20: 4.0}
    assert validation["loss"] == {10: 3.0}
    assert set(validation) == set(train) == {"loss", *SCORES}


def test_a_run_without_rows_has_no_file(tmp_path):
    with contextlib.closing(Events(tmp_path / "tensorboard")):
        pass
    assert not (tmp_path / "tensorboard").exists()
