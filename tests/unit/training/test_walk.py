"""The walks of the FOV: moves, canvas and score; lanes are independent, and restored exactly."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import RecordError
from ffn.io import hdf5
from ffn.training.config import TrainConfig
from ffn.training.data.examples import (
    IN_OBJECT,
    NOT_COUNTED,
    SOFT_LABELS,
    UNLABELLED,
    Example,
    distance,
    moves,
    patch_size,
)
from ffn.training.walk import DEPTH, HostPatches, LaneWalks, Prefetcher, Walk

FOV = (3, 5, 7)
PATCH = (5, 9, 13)
MOVES = ((0, 0, 3), (1, 0, 0), (0, -2, 0), (-1, 0, 0), (0, 2, 0), (0, 0, -3))
MODEL = ModelConfig(fov_size_zyx=FOV, deltas_zyx=(1, 2, 3), image_mean=100, image_stddev=20)
FIXED = TrainConfig(fov_policy="fixed")
MAX_PRED = TrainConfig(fov_policy="max_pred", fov_moves=2)
FACES = TrainConfig(fov_policy="faces")
# Made by google/ffn's own code (ffn/training/examples.py at 6f61f6e: fixed_offsets, max_pred_offsets) on the canvases,
# labels and orders of moves of `reference_walk`. Positions are relative to the centre.
REFERENCE = json.loads(Path(__file__).with_name("reference_walks.json").read_text())


def make_example(value: float = 0.0, train: TrainConfig = FIXED) -> Example:
    shape = patch_size(MODEL, train)
    kinds = np.zeros(shape, np.uint8)
    kinds[:, :, shape[2] // 2 :] = IN_OBJECT
    return Example(np.full(shape, value, np.float32), None, kinds, 0.3, MOVES)


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


def test_the_score_counts_the_whole_patch_but_no_weight_0():
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0  # two columns of the object, two outside, in one of five sections
    np.testing.assert_array_equal(walk.score(), [9 * 2, 9 * 2, 5 * 9 * 6 - 18, 5 * 9 * 7 - 18])
    assert walk.score().sum() == np.prod(PATCH)
    walk = make_walk()
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0
    walk.example.kinds[:, :, 5:7] |= NOT_COUNTED  # one column of the object, one outside
    walk.example.kinds[:, :, 8] |= UNLABELLED
    np.testing.assert_array_equal(walk.score(), [9, 9, 5 * 9 * 5 - 9, 5 * 9 * 6 - 9])


def reference_walk(case: dict) -> tuple[Walk, list[list[int]]]:
    """Walk with a network that answers at random, in whole numbers: the same on every machine."""
    fov, rng = case["fov"], np.random.RandomState(case["seed"])
    model = ModelConfig(fov_size_zyx=fov, deltas_zyx=case["deltas"], image_mean=100, image_stddev=20)
    fov_moves = case["fov_moves"] if case["policy"] == "max_pred" else 1
    train = TrainConfig(fov_policy=case["policy"], fov_moves=fov_moves)
    shape = patch_size(model, train)
    kinds = (rng.randint(0, 3, shape) > 0).astype(np.uint8)
    kinds[tuple(n // 2 for n in shape)] = IN_OBJECT
    found = moves(model.deltas_zyx)
    order = sorted((found[i] for i in rng.permutation(26)), key=distance)
    walk = Walk(Example(kinds, SOFT_LABELS, kinds, 1.0, tuple(order)), model, train)
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


def test_max_pred_refuses_to_leave_the_object_and_scores_without_its_rim():
    walk = make_walk(MAX_PRED)
    center, scored = walk.position_zyx, np.prod([n - 2 * d for n, d in zip((9, 17, 25), (1, 2, 3), strict=True)])
    assert walk.canvas_logit.shape == (9, 17, 25) and walk.score().sum() == scored
    for start in stops(walk, np.full(FOV, 5, np.float32)):
        assert start[2] + FOV[2] // 2 >= center[2]  # the object begins at the centre
    with_rim = walk.score()
    walk.canvas_logit[0] = 5
    np.testing.assert_array_equal(walk.score(), with_rim)


def test_broken_walks_are_not_counted():
    walks = lane_walks({0: 0, 1: 0})
    output = np.full((2, *FOV), -5, np.float32)
    output[0, 1, 1, 1] = np.nan
    walks.proceed(output)
    assert walks.take_counts()[:4].sum() == np.prod(PATCH)  # lane 1 only
    assert np.isfinite(walks.batch().pom_logit).all()


@pytest.mark.parametrize("train", [FIXED, FACES, MAX_PRED], ids=lambda train: train.fov_policy)
@pytest.mark.parametrize("runaway", [101.0, -101.0, np.inf, np.nan])
def test_a_walk_ends_where_a_logit_has_run_away(runaway, train):
    walk, output = make_walk(train), np.full(FOV, 99, np.float32)
    for _ in range(3):
        walk.write(output)
        assert walk.advance()
    output[0, 0, 0] = runaway
    walk.write(output)
    assert not walk.advance()


POLICIES = (FIXED, FACES, MAX_PRED)


def make_kind(value, train):
    shape = patch_size(MODEL, train)
    is_object = np.random.default_rng(0).random(shape) < (0.35 if value % 2 else 0.65)  # two kinds
    order = tuple(moves(MODEL.deltas_zyx, train.fov_policy))
    return Example(np.full(shape, value, np.float32), None, is_object.astype(np.uint8), 1.0, order)


class Source:
    """Examples whose grey level encodes lane and position."""

    def __init__(self, positions, train):
        self._next = dict(positions)
        self._train = train

    def take(self, lane):
        self._next[lane] += 1
        return make_kind(100 * lane + self._next[lane] - 1, self._train)


def lane_walks(positions, train=FIXED):
    return LaneWalks(Source(positions, train), positions, HostPatches(MODEL, train))


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
            walks.proceed(output + 0.1 * batch.pom_logit)
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


def test_each_lane_gets_its_examples_in_order_and_errors_are_raised():
    def make(lane, position):
        if (lane, position) == (4, 9):
            raise RecordError("a: bad record")
        return lane, position

    with Prefetcher(make, {3: 0, 4: 7}) as prefetcher:
        assert [prefetcher.take(3) for _ in range(DEPTH + 3)] == [(3, i) for i in range(DEPTH + 3)]
        assert [prefetcher.take(4) for _ in range(2)] == [(4, 7), (4, 8)]
        with pytest.raises(RecordError, match="bad record"):
            prefetcher.take(4)
