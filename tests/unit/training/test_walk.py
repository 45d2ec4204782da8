"""The walk of the FOV: its moves, its canvas and its score."""

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.inference.canvas import logit
from ffn.inference.movement import FaceMaxMovement
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, patch_size
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
    """Starts of the windows of a whole walk in which the network always outputs `output`."""
    visited = []
    while True:
        visited.append(tuple(s.start for s in walk.window))
        walk.write(output)
        if not walk.advance():
            return visited


def test_the_canvas_starts_with_the_centre_only():
    walk = make_walk()
    assert walk.canvas_logit.shape == PATCH
    assert walk.canvas_logit[CENTER] == pytest.approx(2.9444, abs=1e-4)
    assert (walk.canvas_logit == logit(0.05)).sum() == walk.canvas_logit.size - 1


def test_a_walk_visits_all_neighbours_that_the_pom_reaches_in_order():
    visited = stops(make_walk(), np.full(FOV, logit(0.9)))
    expected = [(0, 0, 0), *MOVES]
    assert visited == [(1 + z, 2 + y, 3 + x) for z, y, x in expected]


def test_a_walk_skips_neighbours_below_the_move_threshold():
    output = np.full(FOV, logit(0.9) - 1e-3, np.float32)
    assert stops(make_walk(), output) == [(1, 2, 3)]
    output[1, 2, 6] = 5.0  # the neighbour at x + 3
    assert stops(make_walk(), output) == [(1, 2, 3), (1, 2, 6)]


def test_a_neighbour_that_is_reached_during_the_walk_is_visited():
    walk = make_walk()
    walk.write(np.full(FOV, -5, np.float32))
    walk.canvas_logit[2, 2, 6] = 5.0  # y - 2, third in order
    assert walk.advance() and relative(walk.position_zyx, CENTER) == MOVES[2]
    walk.canvas_logit[2, 6, 6] = 5.0  # y + 2, fifth
    walk.canvas_logit[2, 4, 9] = 5.0  # x + 3, first: its turn is over
    assert walk.advance() and relative(walk.position_zyx, CENTER) == MOVES[4]
    assert not walk.advance()


def test_the_score_counts_the_whole_patch():
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0  # two columns of the object, two outside, in one of five sections
    np.testing.assert_array_equal(walk.score(), [9 * 2, 9 * 2, 5 * 9 * 6 - 18, 5 * 9 * 7 - 18])
    assert walk.score().sum() == np.prod(PATCH)


def test_voxels_of_loss_weight_0_are_not_counted():
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0
    walk.example.loss_weight[:, :, 5:7] = 0.0  # one column of the object, one outside
    walk.example.loss_weight[:, :, 8] = 0.3
    np.testing.assert_array_equal(walk.score(), [9, 9, 5 * 9 * 5 - 9, 5 * 9 * 6 - 9])


def test_fixed_window_looks_one_voxel_around_but_moves_by_whole_deltas():
    output = np.full(FOV, -1, np.float32)
    output[0, 1, 5] = REACHED  # off the neighbour at x + 3 by one voxel on every axis
    assert stops(make_walk(FIXED), output) == [(1, 2, 3)]
    assert stops(make_walk(WINDOW), output) == [(1, 2, 3), (1, 2, 6)]
    output[:] = -1
    output[1, 0, 6] = REACHED  # two voxels off
    assert stops(make_walk(WINDOW), output) == [(1, 2, 3)]


def test_max_pred_moves_as_inference_does():
    """Compare with the movement of inference, on a POM that changes with every visit."""
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


def test_max_pred_starts_with_the_best_face():
    output = np.full(FOV, -1, np.float32)
    output[1, 2, 6], output[0, 2, 3], output[1, 0, 4] = 3, 5, 4
    walk = make_walk(MAX_PRED)
    walk.write(output)
    center, visited = walk.position_zyx, []
    while walk.advance():
        visited.append(relative(walk.position_zyx, center))
    assert visited == [(-1, 0, 0), (0, -2, 1), (0, 0, 3)]
