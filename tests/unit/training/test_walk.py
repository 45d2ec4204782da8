"""The walk of the FOV: its moves, its canvas and its score."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.inference.canvas import logit
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, distance, moves, patch_size
from ffn.training.walk import Walk

FOV = (3, 5, 7)
PATCH = (5, 9, 13)
CENTER = (2, 4, 6)
MOVES = ((0, 0, 3), (1, 0, 0), (0, -2, 0), (-1, 0, 0), (0, 2, 0), (0, 0, -3))
MODEL = ModelConfig(fov_size_zyx=FOV, deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)
FIXED = TrainConfig(fov_policy="fixed")
MAX_PRED = TrainConfig(fov_policy="max_pred", fov_moves=2)
FACES = TrainConfig(fov_policy="faces")
REACHED = logit(0.9)
# Made by google/ffn's own code (ffn/training/examples.py at 6f61f6e: fixed_offsets, max_pred_offsets) on the canvases,
# labels and orders of moves of `reference_walk`. Positions are relative to the centre. Moves are what its tracker was
# told after the first one; for max_pred, at all distances together.
REFERENCE = json.loads(Path(__file__).with_name("reference_walks.json").read_text())


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


def test_a_walk_visits_all_neighbours_that_the_pom_reaches_in_order():
    visited = stops(make_walk(), np.full(FOV, logit(0.9)))
    expected = [(0, 0, 0), *MOVES]
    assert visited == [(1 + z, 2 + y, 3 + x) for z, y, x in expected]


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


def reference_walk(case: dict) -> tuple[Walk, list[list[int]]]:
    """Walk with a network that answers at random, in whole numbers: the same on every machine."""
    fov, rng = case["fov"], np.random.RandomState(case["seed"])
    model = ModelConfig(fov_size_zyx=fov, deltas_zyx=case["deltas"], image_mean=100, image_stddev=20)
    fov_moves = case["fov_moves"] if case["policy"] == "max_pred" else 1
    train = TrainConfig(fov_policy=case["policy"], fov_moves=fov_moves)
    shape = patch_size(model, train)
    labels = np.where(rng.randint(0, 3, shape) > 0, np.float32(0.95), np.float32(0.05))
    labels[tuple(n // 2 for n in shape)] = 0.95
    found = moves(model.deltas_zyx)
    order = sorted((found[i] for i in rng.permutation(26)), key=distance)
    walk = Walk(Example(labels, labels, np.ones(shape, np.float32), tuple(order)), model, train)
    center, visited = walk.position_zyx, []
    while True:
        visited.append(list(relative(walk.position_zyx, center)))
        output = rng.randint(-6, 7, fov).astype(np.float32)
        if case["policy"] == "max_pred":
            output = np.where(rng.randint(0, 40, fov) == 0, output + 6, np.float32(-5))
        walk.write(output)
        if not walk.advance():
            return walk, visited


@pytest.mark.parametrize("case", REFERENCE, ids=[f"{case['policy']}-{case['seed']}" for case in REFERENCE])
def test_a_walk_visits_the_positions_of_the_reference(case):
    walk, visited = reference_walk(case)
    assert visited == case["positions"]
    found = walk.moves.sum(axis=0) if case["policy"] == "max_pred" else walk.moves
    np.testing.assert_array_equal(found, case["moves"])


def test_max_pred_refuses_to_leave_the_object_and_scores_without_its_rim():
    walk = make_walk(MAX_PRED)
    center, scored = walk.position_zyx, np.prod([n - 2 * d for n, d in zip((9, 17, 25), (1, 2, 3), strict=True)])
    assert walk.canvas_logit.shape == (9, 17, 25) and walk.score().sum() == scored
    for start in stops(walk, np.full(FOV, 5, np.float32)):
        assert start[2] + FOV[2] // 2 >= center[2]  # the object begins at the centre
    assert walk.moves[:, 2].sum() > 0 and walk.moves[:, 1].sum() == 0
    with_rim = walk.score()
    walk.canvas_logit[0] = 5
    np.testing.assert_array_equal(walk.score(), with_rim)


def test_moves_to_voxels_of_loss_weight_0_are_not_counted():
    walk = make_walk()
    walk.example.loss_weight[:, :, 7:] = 0.0
    stops(walk, np.full(FOV, 5, np.float32))
    np.testing.assert_array_equal(walk.moves, [[4, 0, 1], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("runaway", [101.0, -101.0, np.inf, np.nan])
def test_max_pred_ends_where_a_logit_has_run_away(runaway):
    walk, output = make_walk(MAX_PRED), np.full(FOV, 99, np.float32)
    for _ in range(5):
        walk.write(output)
        assert walk.advance()
    output[0, 0, 0] = runaway
    walk.write(output)
    assert not walk.advance()
