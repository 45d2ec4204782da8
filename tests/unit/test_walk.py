"""The walk of the FOV: where it goes, what it writes, what it counts, and that it can be stopped anywhere."""

import numpy as np
import pytest

from ffn.training.examples import Example
from ffn.training.lane_walks import LaneWalks
from ffn.training.step import Outcome
from ffn.training.walk import Walk, logit

FOV = (3, 5, 7)
PATCH = (5, 9, 13)
CENTER = (2, 4, 6)
MOVES = ((0, 0, 3), (1, 0, 0), (0, -2, 0), (-1, 0, 0), (0, 2, 0), (0, 0, -3))


def make_example(value: float = 0.0) -> Example:
    labels = np.full(PATCH, 0.05, np.float32)
    labels[:, :, 6:] = 0.95
    return Example(np.full(PATCH, value, np.float32), labels, MOVES)


def stops(walk: Walk, output: np.ndarray) -> list[tuple[int, int, int]]:
    """Windows' starts of a whole walk in which the network always answers `output`."""
    visited = []
    while True:
        visited.append(tuple(s.start for s in walk.window))
        walk.write(output)
        if not walk.advance():
            return visited


def test_canvas_starts_with_the_centre_only():
    walk = Walk(make_example(), FOV)
    assert walk.canvas_logit.shape == PATCH
    assert walk.canvas_logit[CENTER] == pytest.approx(2.9444, abs=1e-4)
    assert (walk.canvas_logit == logit(0.05)).sum() == walk.canvas_logit.size - 1


def test_walk_visits_all_neighbours_in_order_when_the_map_reaches_them():
    visited = stops(Walk(make_example(), FOV), np.full(FOV, logit(0.9)))
    expected = [(0, 0, 0), *MOVES]
    assert visited == [(1 + z, 2 + y, 3 + x) for z, y, x in expected]


def test_walk_skips_neighbours_below_the_move_threshold():
    output = np.full(FOV, logit(0.9) - 1e-3, np.float32)
    assert stops(Walk(make_example(), FOV), output) == [(1, 2, 3)]
    output[1, 2, 6] = 5.0  # the neighbour at x + 3
    assert stops(Walk(make_example(), FOV), output) == [(1, 2, 3), (1, 2, 6)]


def test_a_move_opened_later_in_the_walk_is_taken():
    walk = Walk(make_example(), FOV)
    walk.write(np.full(FOV, -5, np.float32))
    walk.canvas_logit[2, 2, 6] = 5.0  # y - 2, third in order
    assert walk.advance() and walk.stop == 3
    walk.canvas_logit[2, 6, 6] = 5.0  # y + 2, fifth
    walk.canvas_logit[2, 4, 9] = 5.0  # x + 3, first: passed already
    assert walk.advance() and walk.stop == 5
    assert not walk.advance()


def test_score_counts_the_whole_patch():
    walk = Walk(make_example(), FOV)
    walk.canvas_logit[:] = -1.0
    walk.canvas_logit[0, :, 4:8] = 3.0  # two columns of the object, two outside, in one of five sections
    np.testing.assert_array_equal(walk.score(), [9 * 2, 9 * 2, 5 * 9 * 6 - 18, 5 * 9 * 7 - 18])
    assert walk.score().sum() == np.prod(PATCH)


class Source:
    """Examples whose image says lane and position."""

    def __init__(self, positions):
        self._next = dict(positions)

    def take(self, lane):
        self._next[lane] += 1
        return make_example(100 * lane + self._next[lane] - 1)


def lane_walks(positions):
    return LaneWalks(Source(positions), positions, FOV)


def network(batch) -> np.ndarray:
    """Some answer that depends on the input and opens moves in lane 1 only."""
    open_moves = (batch.image > 50) * 6
    return (batch.pom_logit * 0.5 + open_moves - 1 + 0.01 * batch.image).astype(np.float32)


def test_lanes_are_at_different_stages_and_stop_and_go_on_exactly():
    walks = lane_walks({0: 0, 1: 0})
    for _ in range(5):
        batch = walks.batch()
        assert batch.image.shape == batch.pom_logit.shape == batch.labels.shape == (2, *FOV)
        walks.proceed(Outcome(network(batch), 0.0, True))
    assert walks.positions == {0: 5, 1: 0}
    saved = walks.arrays()

    def go_on(walks):
        counts, batches = np.zeros(4, np.int64), []
        for _ in range(6):
            batches.append(np.stack(walks.batch()))
            counts += walks.proceed(Outcome(network(walks.batch()), 0.0, True))
        return counts, np.stack(batches), walks.positions

    restored = lane_walks({0: 5, 1: 0})
    restored.restore(saved)
    for one, other in zip(go_on(walks), go_on(restored), strict=True):
        np.testing.assert_equal(one, other)
    assert walks.positions == {0: 11, 1: 1}


def test_an_output_that_is_not_finite_ends_its_walk_without_counts():
    walks = lane_walks({0: 0, 1: 0})
    output = np.full((2, *FOV), -5, np.float32)
    output[0, 1, 1, 1] = np.nan
    counts = walks.proceed(Outcome(output, 0.0, False))
    assert counts.sum() == np.prod(PATCH)  # lane 1 only
    assert np.isfinite(walks.batch().pom_logit).all()
