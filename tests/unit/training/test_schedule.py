"""The learning rate over a whole run, for all schedules and scaling rules."""

import numpy as np
import pytest

from ffn.training.config import TrainConfig
from ffn.training.optimizers import learning_rate

OPTIONS = {"num_workers": 4, "virtual_workers": 2, "batch_size": 3, "learning_rate": 0.01, "max_steps": 100}
PEAK = {"constant": 0.01, "linear": 0.24, "sqrt": 0.01 * 24**0.5}


def rates(**options):
    train = TrainConfig(**OPTIONS, **options)
    return np.array([learning_rate(train, step) for step in range(train.max_steps)])


@pytest.mark.parametrize("rule", PEAK)
@pytest.mark.parametrize("schedule", ["constant", "cosine", "cyclic"])
@pytest.mark.parametrize("warmup", [0, 10])
def test_the_warm_up_ends_at_the_scaled_rate_which_is_the_highest(rule, schedule, warmup):
    found = rates(scaling_rule=rule, schedule=schedule, warmup_steps=warmup)
    assert [found[warmup], found.max()] == pytest.approx([PEAK[rule]] * 2)
    assert found.min() > 0
    np.testing.assert_allclose(np.diff(found[:warmup]), PEAK[rule] / 10)


def test_cycles_swing_between_both_rates(monkeypatch):
    monkeypatch.setattr("ffn.training.optimizers.CYCLE_STEPS", 20)
    found = rates(schedule="cyclic", warmup_steps=10)[10:]
    np.testing.assert_allclose(found[:70], found[20:])
    assert found[:20].argmin() == 10 and found[10] == pytest.approx(0.1 * 0.01)
    np.testing.assert_allclose(np.abs(np.diff(found)), 0.9 * 0.01 / 10)
