"""The walks of all lanes: independent of each other, and restored exactly."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.io import hdf5
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, moves, patch_size
from ffn.training.step import Outcome
from ffn.training.walk import LaneWalks

FOV = (3, 5, 7)
PATCH = (5, 9, 13)
MODEL = ModelConfig(fov_size_zyx=FOV, deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)
FIXED = TrainConfig(fov_policy="fixed")
MAX_PRED = TrainConfig(fov_policy="max_pred", fov_moves=2)
FACES = TrainConfig(fov_policy="faces")
POLICIES = (FIXED, FACES, MAX_PRED)


def make_example(value, train):
    shape = patch_size(MODEL, train)
    is_object = np.random.default_rng(0).random(shape) < (0.35 if value % 2 else 0.65)  # two kinds
    labels = np.where(is_object, np.float32(0.95), np.float32(0.05))
    image, weight = np.full(shape, value, np.float32), np.ones(shape, np.float32)
    return Example(image, labels, weight, tuple(moves(MODEL.deltas_zyx, train.fov_policy)))


class Source:
    """Examples whose grey level encodes lane and position."""

    def __init__(self, positions, train):
        self._next = dict(positions)
        self._train = train

    def take(self, lane):
        self._next[lane] += 1
        return make_example(100 * lane + self._next[lane] - 1, self._train)


def lane_walks(positions, train=FIXED):
    return LaneWalks(Source(positions, train), positions, MODEL, train)


def network(batch) -> np.ndarray:
    """Output that depends on the input, and opens moves in lane 1 only."""
    open_moves = (batch.image > 50) * 6
    return (batch.pom_logit * 0.5 + open_moves - 1 + 0.01 * batch.image).astype(np.float32)


def test_a_lane_takes_its_next_example_when_its_walk_ends():
    walks = lane_walks({0: 0, 1: 0})
    for _ in range(5):
        batch = walks.batch()
        assert {array.shape for array in batch} == {(2, *FOV)}
        assert {array.dtype for array in batch} == {np.dtype(np.float32)}
        walks.proceed(Outcome(network(batch), 0.0, True))
    assert walks.positions == {0: 5, 1: 0}


@pytest.mark.parametrize("train", POLICIES, ids=lambda train: train.fov_policy)
@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_restored_walks_continue_exactly(train, steps, tmp_path):
    rng = np.random.default_rng(0)
    walks = lane_walks({0: 4, 1: 7}, train)
    outputs = rng.normal(0.2, 1.0, (steps + 90, 2, *FOV)).astype(np.float32)

    def proceed(walks, outputs):
        seen = []
        for output in outputs:
            batch = walks.batch()
            walks.proceed(Outcome(output + 0.1 * batch.pom_logit, 0.0, True))
            seen.append([*batch, *walks.positions.values()])
        return seen

    proceed(walks, outputs[:steps])
    for lane, state in walks.states().items():
        hdf5.write_arrays(tmp_path / f"{lane}.h5", state, {})
    restored = lane_walks(walks.positions, train)
    restored.restore({lane: hdf5.read_arrays(tmp_path / f"{lane}.h5")[0] for lane in (0, 1)})
    expected = proceed(walks, outputs[steps:])
    np.testing.assert_equal(proceed(restored, outputs[steps:]), expected)
    assert min(walks.positions[0] - 4, walks.positions[1] - 7) > 0
    np.testing.assert_equal(restored.states(), walks.states())
    np.testing.assert_array_equal(restored.take_counts(), walks.take_counts())


def test_a_walk_with_output_that_is_not_finite_ends_uncounted():
    walks = lane_walks({0: 0, 1: 0})
    output = np.full((2, *FOV), -5, np.float32)
    output[0, 1, 1, 1] = np.nan
    walks.proceed(Outcome(output, 0.0, False))
    assert walks.take_counts()[:4].sum() == np.prod(PATCH)  # lane 1 only
    assert np.isfinite(walks.batch().pom_logit).all()
