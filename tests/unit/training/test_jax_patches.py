"""Walks over patches on a device are those over patches in memory, to the bit."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.training.config import TrainConfig
from ffn.training.data.examples import IN_OBJECT, NOT_COUNTED, UNLABELLED, Example, moves, patch_size
from ffn.training.loop import make_learner, make_patches
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.plan import initial_weights
from ffn.training.walk import HostPatches, LaneWalks

jax_learner = pytest.importorskip("ffn.training.jax_learner")

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


class Source:
    """Examples of bright objects."""

    def __init__(self, positions, train):
        self._next, self._train, self._shape = dict(positions), train, patch_size(MODEL, train)

    def take(self, lane):
        rng = np.random.default_rng((lane, self._next[lane]))
        self._next[lane] += 1
        grey = rng.integers(0, 256, self._shape, dtype=np.uint8)
        levels = np.linspace(-2, 2, 256, dtype=np.float32)
        kinds = (grey > 80).astype(np.uint8) * IN_OBJECT
        kinds |= rng.choice(np.uint8([0, UNLABELLED, NOT_COUNTED]), self._shape, p=[0.8, 0.1, 0.1])
        kinds[tuple(n // 2 for n in self._shape)] = IN_OBJECT
        order = tuple(moves(MODEL.deltas_zyx, self._train.fov_policy))
        if lane % 2:
            return Example(grey, levels, kinds, self._train.unlabelled_weight, order)
        return Example(levels[grey], None, kinds, self._train.unlabelled_weight, order)


def train_for(steps, train, learner, patches, state=None):
    """Train on two lanes of each of two workers; return everything that a walk decides, and the learner's state."""
    positions = dict.fromkeys(range(4), 0) if state is None else {n: int(one["position"]) for n, one in state.items()}
    learner.restore(learner.initial, [{}, {}])
    walks = LaneWalks(Source(positions, train), positions, patches)
    if state is not None:
        walks.restore(state)
    seen = []
    for _ in range(steps):
        outcome = learner.step(walks.batch(), 0.02)
        walks.proceed(outcome.answers)
        seen.append((outcome.loss, outcome.finite, dict(walks.positions)))
    return seen, walks.states(), walks.take_counts(), learner.state()


@pytest.mark.parametrize(
    "walk",
    [
        pytest.param({"fov_policy": "fixed", "unlabelled_weight": 0.5}, marks=pytest.mark.slow),
        {"fov_policy": "max_pred", "fov_moves": 2, "unlabelled_weight": 0.0},
    ],
    ids=lambda walk: walk["fov_policy"],
)
def test_walks_on_a_device_are_those_in_memory_and_go_on_from_its_checkpoint(walk, monkeypatch):
    monkeypatch.setattr(jax_learner, "WATCHED", 3)  # so that a queue is longer
    train = TrainConfig(engine="jax", precision="float32", batch_size=2, virtual_workers=2, **walk)
    learner = make_learner(MODEL, train, initial_weights(MODEL, 1), ProcessGroup(), 5)
    learner.initial = learner.state()
    places = make_patches(learner, MODEL, train), HostPatches(MODEL, train)
    device, host = (train_for(60, train, learner, place) for place in places)
    np.testing.assert_equal(device, host)
    assert 0 < max(host[0][-1][2].values()) < 60
    np.testing.assert_equal(*(train_for(9, train, learner, place, host[1]) for place in places))
