"""The loop of one process: when it gives up, what it counts, what it saves."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import TrainError
from ffn.model.store import Model
from ffn.training.config import TrainConfig
from ffn.training.distributed import ProcessGroup
from ffn.training.lanes import Shards
from ffn.training.loop import MAX_SKIPPED_IN_ROW, Trainer
from ffn.training.plan import Plan
from ffn.training.step import Outcome

MODEL = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 3), deltas_zyx=(1, 1, 1), image_mean=0, image_stddev=1)


class Walks:
    """Walks of one step each."""

    def __init__(self):
        self.positions = {0: 0, 1: 0}

    def batch(self):
        return None

    def proceed(self, outcome):
        self.positions = {lane: position + 1 for lane, position in self.positions.items()}
        return np.array([2, 1, 4, 1]) if outcome.finite else np.zeros(4, np.int64)

    def arrays(self):
        return {"positions": np.array(list(self.positions.values()))}

    def restore(self, arrays):
        self.positions = dict(enumerate(arrays["positions"].tolist()))


class Learner:
    """Fails in the steps it is told to."""

    def __init__(self, broken=()):
        self.rates = []
        self._broken = set(broken)

    def step(self, batch, learning_rate):
        self.rates.append(learning_rate)
        finite = len(self.rates) not in self._broken
        return Outcome(np.zeros((2, 3, 3, 3), np.float32), 0.5 if finite else float("nan"), finite)

    def state(self):
        return {"weights/a": np.array([len(self.rates)])}

    def restore(self, state):
        self.rates = [0.0] * int(state["weights/a"][0])


class NotTheFirst(ProcessGroup):
    """A process that writes no reports."""

    rank = 1


class Saved(list):
    """Checkpoints in memory."""

    save = list.append


def make_trainer(learner, **options):
    train = TrainConfig(num_workers=1, batch_size=2, learning_rate=0.4, **options)
    plan = Plan(train, 1, Model(MODEL, {}, {}), Shards([], [40], len), None, {})
    return Trainer(plan, NotTheFirst(), learner, Walks())


def test_training_gives_up_after_many_broken_steps_in_a_row(tmp_path):
    broken = range(3, 3 + MAX_SKIPPED_IN_ROW)
    trainer, saved = make_trainer(Learner(broken), max_steps=50, checkpoint_steps=2), Saved()
    with pytest.raises(TrainError, match=r"not finite in 10 steps up to 12. Lower train.learning_rate"):
        trainer.run(tmp_path, saved)
    assert saved[0].step == 2


def test_single_broken_steps_are_skipped_and_counted(tmp_path):
    trainer, saved = (
        make_trainer(Learner(range(2, 40, 2)), max_steps=30, log_steps=100, checkpoint_steps=21),
        Saved(),
    )
    trainer.run(tmp_path, saved)
    assert [checkpoint.step for checkpoint in saved] == [21, 30]
    own = saved[0].own
    assert (own["num_steps"], own["num_skipped"], own["loss_sum"]) == (11, 10, 5.5)
    np.testing.assert_array_equal(own["counts"], np.array([2, 1, 4, 1]) * 11)


def test_counts_start_anew_after_a_row_and_go_on_after_a_checkpoint(tmp_path):
    options = {"max_steps": 24, "log_steps": 10, "checkpoint_steps": 8}
    whole, saved = make_trainer(Learner(), **options), Saved()
    whole.run(tmp_path, saved)
    assert [int(checkpoint.own["num_steps"]) for checkpoint in saved] == [8, 6, 0]
    resumed, saved_again = make_trainer(Learner(), **options), Saved()
    resumed.restore(saved[0])
    resumed.run(tmp_path, saved_again)
    for one, other in zip(saved[1:], saved_again, strict=True):
        for name in one.own.keys() - {"seconds"}:
            np.testing.assert_array_equal(one.own[name], other.own[name])


def test_learning_rate_rises_linearly(tmp_path):
    learner = Learner()
    make_trainer(learner, max_steps=6, warmup_steps=4).run(tmp_path, Saved())
    assert learner.rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
