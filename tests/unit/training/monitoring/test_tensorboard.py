"""TensorBoard logs: scalars and their smoothed curves."""

import contextlib

import pytest

from ffn.training.monitoring.metrics import SCORES
from ffn.training.monitoring.reporting import Events


def row(step, loss):
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


def test_scalars_of_training_have_a_smoothed_curve(tmp_path):
    with contextlib.closing(Events(tmp_path)) as events:
        events.training([row(10, 2.0), row(20, 4.0)])
        events.validation([row(10, 3.0)])
    train, validation = read_events(tmp_path / "train"), read_events(tmp_path / "validation")
    assert train["loss"] == {10: 2.0, 20: 4.0}
    assert train["loss_smoothed"][20] == pytest.approx((0.9 * 2 + 4) / 1.9)
    assert validation["loss"] == {10: 3.0}
    assert set(validation) == {"loss", *SCORES}


def test_scalars_that_are_written_again_replace_the_old_ones(tmp_path):
    for step in (10, 20):
        with contextlib.closing(Events(tmp_path)) as events:
            events.training([row(step, 1.0)])
    assert set(read_events(tmp_path / "train")["loss"]) == {20}


def test_a_run_without_rows_has_no_file(tmp_path):
    with contextlib.closing(Events(tmp_path / "tensorboard")) as events:
        events.training([])
    assert not (tmp_path / "tensorboard").exists()
