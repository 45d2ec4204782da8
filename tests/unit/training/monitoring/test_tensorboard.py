"""TensorBoard logs: scalars, their smoothed curves, pictures."""

import contextlib

import numpy as np
import pytest

from ffn.training.monitoring.metrics import SCORES
from ffn.training.monitoring.tensorboard import Events


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
    with contextlib.closing(Events(tmp_path, resumed=False)) as events:
        events.training([row(10, 2.0), row(20, 4.0)])
        events.validation([row(10, 3.0)])
    train, validation = read_events(tmp_path / "train"), read_events(tmp_path / "validation")
    assert train["loss"] == {10: 2.0, 20: 4.0}
    assert train["loss_smoothed"][20] == pytest.approx((0.9 * 2 + 4) / 1.9)
    assert validation["loss"] == {10: 3.0}
    assert set(validation) == {"loss", *SCORES}


@pytest.mark.parametrize("resumed", [True, False])
def test_a_resumed_training_keeps_pictures_but_no_scalars(tmp_path, resumed):
    for step, is_resumed in ((10, False), (20, resumed)):
        with contextlib.closing(Events(tmp_path, is_resumed)) as events:
            events.training([row(step, 1.0)])
            events.picture("train", step, np.zeros((4, 5, 3), np.uint8))
    assert set(read_events(tmp_path / "train")["loss"]) == {20}
    assert set(read_events(tmp_path / "pictures")["train"]) == ({10, 20} if resumed else {20})


def test_a_run_without_rows_has_no_file(tmp_path):
    with contextlib.closing(Events(tmp_path / "tensorboard", resumed=False)) as events:
        events.training([])
    assert not (tmp_path / "tensorboard").exists()
