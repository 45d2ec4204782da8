"""The walk of the FOV: where it goes, what it writes, what it counts, and that it can be stopped anywhere."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.inference.canvas import logit
from ffn.inference.movement import FaceMaxMovement
from ffn.io import hdf5
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, patch_size
from ffn.training.lane_walks import LaneWalks
from ffn.training.step import Outcome
from ffn.training.walk import Walk

FOV = (3, 5, 7)
PATCH = (5, 9, 13)
CENTER = (2, 4, 6)
MOVES = ((0, 0, 3), (1, 0, 0), (0, -2, 0), (-1, 0, 0), (0, 2, 0), (0, 0, -3))
MODEL = ModelConfig(fov_size_zyx=FOV, deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)
FIXED = TrainConfig(fov_policy="fixed")
WINDOW = TrainConfig(fov_policy="fixed_window")
MAX_PRED = TrainConfig(fov_policy="max_pred", fov_moves=2)
POLICIES = (FIXED, WINDOW, MAX_PRED)
REACHED = logit(0.9)


def make_example(value: float = 0.0, train: TrainConfig = FIXED) -> Example:
    shape = patch_size(MODEL, train)
    labels = np.full(shape, 0.05, np.float32)
    labels[:, :, shape[2] // 2 :] = 0.95
    return Example(np.full(shape, value, np.float32), labels, np.ones(shape, np.float32), MOVES)


def make_walk(train: TrainConfig = FIXED) -> Walk:
    return Walk(make_example(train=train), MODEL, train)


def relative(position, center) -> tuple[int, int, int]:
    return tuple(p - c for p, c in zip(position, center, strict=True))


def stops(walk: Walk, output: np.ndarray) -> list[tuple[int, int, int]]:
    """Windows' starts of a whole walk in which the network always answers `output`."""
    visited = []
    while True:
        visited.append(tuple(s.start for s in walk.window))
        walk.write(output)
        if not walk.advance():
            return visited


def test_canvas_starts_with_the_centre_only():
    walk = make_walk()
    assert walk.canvas_logit.shape == PATCH
    assert walk.canvas_logit[CENTER] == pytest.approx(2.9444, abs=1e-4)
    assert (walk.canvas_logit == logit(0.05)).sum() == walk.canvas_logit.size - 1


def test_walk_visits_all_neighbours_in_order_when_the_map_reaches_them():
    visited = stops(make_walk(), np.full(FOV, logit(0.9)))
    expected = [(0, 0, 0), *MOVES]
    assert visited == [(1 + z, 2 + y, 3 + x) for z, y, x in expected]


def test_walk_skips_neighbours_below_the_move_threshold():
    output = np.full(FOV, logit(0.9) - 1e-3, np.float32)
    assert stops(make_walk(), output) == [(1, 2, 3)]
    output[1, 2, 6] = 5.0  # the neighbour at x + 3
    assert stops(make_walk(), output) == [(1, 2, 3), (1, 2, 6)]


def test_a_move_opened_later_in_the_walk_is_taken():
    walk = make_walk()
    walk.write(np.full(FOV, -5, np.float32))
    walk.canvas_logit[2, 2, 6] = 5.0  # y - 2, third in order
    assert walk.advance() and relative(walk.position_zyx, CENTER) == MOVES[2]
    walk.canvas_logit[2, 6, 6] = 5.0  # y + 2, fifth
    walk.canvas_logit[2, 4, 9] = 5.0  # x + 3, first: passed already
    assert walk.advance() and relative(walk.position_zyx, CENTER) == MOVES[4]
    assert not walk.advance()


def test_score_counts_the_whole_patch():
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0  # two columns of the object, two outside, in one of five sections
    np.testing.assert_array_equal(walk.score(), [9 * 2, 9 * 2, 5 * 9 * 6 - 18, 5 * 9 * 7 - 18])
    assert walk.score().sum() == np.prod(PATCH)


def test_voxels_without_weight_are_not_counted():
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0
    walk.example.loss_weight[:, :, 5:7] = 0.0  # one column of the object, one outside
    walk.example.loss_weight[:, :, 8] = 0.3
    np.testing.assert_array_equal(walk.score(), [9, 9, 5 * 9 * 5 - 9, 5 * 9 * 6 - 9])


def test_fixed_window_looks_one_voxel_around_and_goes_to_the_nominal_place():
    output = np.full(FOV, -1, np.float32)
    output[0, 1, 5] = REACHED  # off the neighbour at x + 3 by one voxel on every axis
    assert stops(make_walk(FIXED), output) == [(1, 2, 3)]
    assert stops(make_walk(WINDOW), output) == [(1, 2, 3), (1, 2, 6)]
    output[:] = -1
    output[1, 0, 6] = REACHED  # two voxels off
    assert stops(make_walk(WINDOW), output) == [(1, 2, 3)]


def test_max_pred_goes_where_inference_would():
    """Against the movement of inference, on a map that changes with every visit."""
    rng = np.random.default_rng(0)
    walk, center = make_walk(MAX_PRED), tuple(n // 2 for n in patch_size(MODEL, MAX_PRED))
    movement = FaceMaxMovement(center, MODEL.deltas_zyx, REACHED)
    half = (1, 2, 3)
    visited = [movement.pop()]
    while True:
        assert walk.position_zyx == visited[-1]
        walk.write(rng.normal(0, 1.3, FOV).astype(np.float32))
        movement.update(visited[-1], walk.canvas_logit[walk.window])
        while (position := movement.pop()) is not None:
            fits = all(h <= p < n - h for p, h, n in zip(position, half, walk.canvas_logit.shape, strict=True))
            if fits and walk.canvas_logit[position] >= REACHED:
                break
        assert walk.advance() == (position is not None)
        if position is None:
            break
        visited.append(position)
    assert len(visited) == len(set(visited)) > 15
    reach = np.abs(np.array(visited) - center).max(axis=0)
    np.testing.assert_array_equal(reach, np.multiply(MODEL.deltas_zyx, 2))  # as far as fov_moves, never further


def test_max_pred_begins_with_the_best_face():
    output = np.full(FOV, -1, np.float32)
    output[1, 2, 6], output[0, 2, 3], output[1, 0, 4] = 3, 5, 4
    walk = make_walk(MAX_PRED)
    walk.write(output)
    center, visited = walk.position_zyx, []
    while walk.advance():
        visited.append(relative(walk.position_zyx, center))
    assert visited == [(-1, 0, 0), (0, -2, 1), (0, 0, 3)]


class Source:
    """Examples whose image says lane and position."""

    def __init__(self, positions, train):
        self._next = dict(positions)
        self._train = train

    def take(self, lane):
        self._next[lane] += 1
        return make_example(100 * lane + self._next[lane] - 1, self._train)


def lane_walks(positions, train=FIXED):
    return LaneWalks(Source(positions, train), positions, MODEL, train)


def network(batch) -> np.ndarray:
    """Some answer that depends on the input and opens moves in lane 1 only."""
    open_moves = (batch.image > 50) * 6
    return (batch.pom_logit * 0.5 + open_moves - 1 + 0.01 * batch.image).astype(np.float32)


def test_lanes_are_at_different_stages_and_stop_and_go_on_exactly():
    walks = lane_walks({0: 0, 1: 0})
    for _ in range(5):
        batch = walks.batch()
        assert {array.shape for array in batch} == {(2, *FOV)}
        assert {array.dtype for array in batch} == {np.dtype(np.float32)}
        walks.proceed(Outcome(network(batch), 0.0, True))
    assert walks.positions == {0: 5, 1: 0}


@pytest.mark.parametrize("train", POLICIES, ids=lambda train: train.fov_policy)
@pytest.mark.parametrize("steps", [0, 1, 3, 8])
def test_a_restored_walk_goes_on_exactly(train, steps, tmp_path):
    rng = np.random.default_rng(0)
    walks = lane_walks({0: 4, 1: 7}, train)
    outputs = rng.normal(0.2, 1.0, (steps + 60, 2, *FOV)).astype(np.float32)

    def proceed(walks, outputs):
        seen = []
        for output in outputs:
            batch = walks.batch()
            counts = walks.proceed(Outcome(output + 0.1 * batch.pom_logit, 0.0, True))
            seen.append([*batch, counts, *walks.positions.values()])
        return seen

    proceed(walks, outputs[:steps])
    hdf5.write_arrays(tmp_path / "state.h5", walks.arrays(), {})
    restored = lane_walks(walks.positions, train)
    restored.restore(hdf5.read_arrays(tmp_path / "state.h5")[0])
    expected = proceed(walks, outputs[steps:])
    np.testing.assert_equal(proceed(restored, outputs[steps:]), expected)
    assert min(walks.positions[0] - 4, walks.positions[1] - 7) > 0
    np.testing.assert_equal(restored.arrays(), walks.arrays())


def test_an_output_that_is_not_finite_ends_its_walk_without_counts():
    walks = lane_walks({0: 0, 1: 0})
    output = np.full((2, *FOV), -5, np.float32)
    output[0, 1, 1, 1] = np.nan
    counts = walks.proceed(Outcome(output, 0.0, False))
    assert counts.sum() == np.prod(PATCH)  # lane 1 only
    assert np.isfinite(walks.batch().pom_logit).all()
