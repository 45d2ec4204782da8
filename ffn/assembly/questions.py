"""Questions about pairs of segments, joined or not: are they one neuron? From the evidence alone, without a truth.

A question is worth the probability that the present answer is wrong, times the volume of the smaller of the two
segments that the other answer would join, or of the two objects that it would part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from ffn.assembly.merge_graph import MergeEdge
from ffn.contingency import RowLookup

Pair = tuple[int, int]

# Mean, standard deviation and weight of each column in the log odds that two segments are one neuron, before anybody
# has answered: fitted to graphs of the demo, FIB-25 (36:133, 41:209, 41:209) and SNEMI3D (64:80, 128:384, 128:384).
# benchmarks/questions.py fits it to all graphs but the one that it reports on.
PRIOR = {
    "agreement": (0.598, 0.345, -0.227),
    "crossing": (0.291, 0.338, 1.54),
    "crossing_best": (0.52, 0.358, 1.48),
    "failed": (0.229, 0.42, 0.315),
    "iou": (0.379, 0.303, -0.489),
    "own": (0.718, 0.215, -0.266),
    "claimed": (-1.2, 2.61, -0.186),  # of a judged pair: log of the voxels that both claimed, as a share of the smaller
    "claimed_alone": (-5.05, 2.48, 1.72),  # of any other pair
    "filled": (0.0, 1.0, 2.14),  # 1 where affinities have joined both, -1 where they have not: docs/experiments.md
    "not_judged": (0.0, 1.0, -2.98),
    "constant": (0.0, 1.0, 0.34),
}
# Of the squared distance from these weights; less of the last two, which tell how many pairs are one neuron: that
# differs most between volumes (16 % and 2 % of those not judged in FIB-25 and the demo).
PENALTIES = [1.0] * (len(PRIOR) - 2) + [0.1, 0.1]
MAX_STEPS = 100
TINY = 1e-9
SUPPORTS = 0.5  # probability from which a second contact holds two parts together; our choice


class Pairs(NamedTuple):
    """Pairs of segments that an agglomeration graph has, or that claimed the same voxels during flood filling."""

    ids: np.ndarray  # uint64 (N, 2), ascending, the smaller id first
    columns: np.ndarray  # float64 (N, F), of `PRIOR`; 0 where nothing is known
    place_zyx: np.ndarray  # int64 (N, 3), full-volume voxels: decision point, or cell where most claims are

    def probabilities(self, answers: Mapping[Pair, bool]) -> np.ndarray:
        """Return how likely the two segments of each pair are one neuron (float64, (N,)), refitted to the answers."""
        rows, same = self.answered(answers)
        expected = np.array([weight for _, _, weight in PRIOR.values()])
        return expit(self.columns @ most_likely(self.columns[rows], same.astype(float), np.array(PENALTIES), expected))

    def answered(self, answers: Mapping[Pair, bool]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows (int64) of the pairs with an answer, and whether each said that they are one neuron."""
        found = RowLookup(*self.ids.T).find(*np.array([*answers], np.uint64).reshape(-1, 2).T)
        return found[found >= 0], np.array([*answers.values()], bool)[found >= 0]


class Question(NamedTuple):
    """A question: are the two segments of a pair one neuron? One answer settles all contacts of two objects."""

    row: int  # of `Pairs`
    joined: bool  # whether both are in one object now
    wrong: float  # probability that this is wrong
    voxels: int  # of the smaller of the two segments that the other answer joins, or objects that it parts
    single: bool  # whether nothing else joins the two; always where they are not joined

    @property
    def worth(self) -> float:
        """Voxels that are expected to be wrong."""
        return self.wrong * self.voxels


def gather(
    edges: Iterable[MergeEdge], claims: np.ndarray, sizes: Mapping[int, int], filled: Mapping[int, int] | None = None
) -> Pairs:
    """Collect what is known of each pair.

    Of several points of a pair, the one with the best score counts. `claims` (int64, (M, 6)) are rows of the table
    ``overlaps``: two segments, first voxel of a cell, voxels in it that both claimed. Pairs with a segment whose voxels
    `sizes` does not have are left out. `filled` tells in which object affinities have put each segment, if there are
    any.
    """
    claimed: dict[Pair, int] = defaultdict(int)
    places: dict[Pair, tuple[int, ...]] = {}
    most: dict[Pair, int] = {}
    for a, b, z, y, x, number in claims.tolist():
        claimed[a, b] += number
        if number > most.get((a, b), 0):
            most[a, b], places[a, b] = number, (z, y, x)
    best: dict[Pair, tuple[float, dict[str, float]]] = {}
    for edge in edges:
        pair, score = (edge.segment_a, edge.segment_b), -1.0 if np.isnan(edge.score) else edge.score
        if pair not in best or score > best[pair][0]:
            best[pair] = score, features(edge)
            places[pair] = edge.z, edge.y, edge.x
    listed = [(a, b) for a, b in sorted(places) if a in sizes and b in sizes]
    rows = []
    for a, b in listed:
        share = np.log((claimed.get((a, b), 0) + 1) / (min(sizes[a], sizes[b]) + 1))
        told = 0.0 if filled is None else 1.0 if filled[a] == filled[b] else -1.0
        rows.append(_row(best.get((a, b), (0.0, {}))[1], share, told))
    places_zyx = np.array([places[pair] for pair in listed], np.int64).reshape(-1, 3)
    return Pairs(np.array(listed, np.uint64).reshape(-1, 2), np.array(rows).reshape(-1, len(PRIOR)), places_zyx)


def features(edge: MergeEdge) -> dict[str, float]:
    """Return the evidence of a decision point, whichever segment comes first; nothing if a side was not grown."""
    found = edge.evidence
    if min(found.tries_a, found.tries_b) == 0:  # one failed, and nothing tells whether they are one neuron
        return {}
    crossing = found.recovered_ab, found.recovered_ba
    return {
        "own": min(found.recovered_aa, found.recovered_bb),
        "crossing": min(crossing),
        "crossing_best": max(crossing),
        "agreement": found.agreement,
        "iou": found.iou,
        "failed": float(min(found.fovs_a, found.fovs_b) <= 1),  # a seed that did not grow says little
    }


def _row(known: Mapping[str, float], share: float, filled: float) -> list[float]:
    """Return the columns of a pair: features that are not known count as their mean."""
    given = {**known, "claimed": share} if known else {"claimed_alone": share, "not_judged": 1.0}
    given |= {"filled": filled, "constant": 1.0}
    return [(given[name] - mean) / spread if name in given else 0.0 for name, (mean, spread, _) in PRIOR.items()]


def most_likely(columns: np.ndarray, same: np.ndarray, penalty: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the weights (float64, (F,)) of a logistic regression; `penalty` is of their distance from `expected`."""
    weights = expected.copy()
    for _ in range(MAX_STEPS):
        found = expit(columns @ weights)
        slope = columns.T @ (found - same) + penalty * (weights - expected)
        curvature = (columns * (found * (1 - found))[:, None]).T @ columns + np.diag(penalty + TINY)
        step = np.linalg.solve(curvature, slope)
        weights -= step / max(1.0, float(np.abs(step).max()))  # far from the maximum, whole steps may overshoot
        if np.abs(step).max() < TINY:
            break
    return weights


def ask(
    pairs: Pairs, same: np.ndarray, answers: Mapping[Pair, bool], objects: Mapping[int, int], sizes: Mapping[int, int]
) -> tuple[list[Question], Forest]:
    """Return all open questions, the most valuable first, and the objects that they are about.

    `same` are the `Pairs.probabilities`. `answers` tell which segments people said to be one neuron, or not; `objects`,
    the object of each segment that was joined with others; `sizes`, the voxels of each segment.
    """
    forest = Forest(answers, sizes)
    listed, likeliest_first = [(a, b) for a, b in pairs.ids.tolist()], np.argsort(-same, kind="stable").tolist()
    within = [row for row in likeliest_first if len({objects.get(n, n) for n in listed[row]}) == 1]
    for row in within:
        a, b = listed[row]
        forest.join(a, b, row)
    settled = {forest.between(a, b) for (a, b), is_same in answers.items() if not is_same}
    found = []
    for row in likeliest_first:
        one, other = forest.between(*listed[row])
        if one != other and (one, other) not in settled:
            settled.add((one, other))  # of the contacts of two objects, the likeliest is asked about
            # A small segment tells little of large objects. On FIB-25 (0:85), a fifth of the questions gains 47 % of
            # what all do; by the smaller of the objects, 13 %.
            smaller = min(sizes[segment] for segment in listed[row])
            found.append(Question(row, False, float(same[row]), smaller, True))
    for row, smaller, is_single in forest.parts({row: listed[row] for row in within if same[row] >= SUPPORTS}):
        if listed[row] not in answers:
            found.append(Question(row, True, float(1 - same[row]), smaller, is_single))
    return sorted(found, key=lambda question: (-question.worth, question.row)), forest


class Forest:
    """Objects as trees of segments, which the likeliest contacts connect; answers come first."""

    def __init__(self, answers: Mapping[Pair, bool], sizes: Mapping[int, int]) -> None:
        self._parents: dict[int, int] = {}
        self._segments = sizes
        self.sizes = defaultdict(int, sizes)  # voxels of each object, by its root
        self._links: dict[int, list[tuple[int, int | None]]] = defaultdict(list)  # to others, and rows of pairs
        self._apart: dict[int, set[int]] = defaultdict(set)
        for (a, b), _ in sorted(answers.items(), key=lambda answer: not answer[1]):  # joins first
            if answers[a, b]:
                self.join(a, b)
                continue
            one, other = self.between(a, b)
            self._apart[one].add(other)
            self._apart[other].add(one)

    def root(self, segment: int) -> int:
        """Return the segment that stands for an object."""
        while (parent := self._parents.get(segment, segment)) != segment:
            self._parents[segment] = segment = self._parents.get(parent, parent)
        return segment

    def between(self, a: int, b: int) -> Pair:
        """Return the roots of two segments."""
        one, other = sorted((self.root(a), self.root(b)))
        return one, other

    def join(self, a: int, b: int, row: int | None = None) -> None:
        """Join the objects of two segments, unless they are one already or an answer keeps them apart."""
        one, other = self.between(a, b)
        if one == other or other in self._apart[one]:
            return
        self._parents[other] = one
        self.sizes[one] += self.sizes[other]
        for away in self._apart.pop(other, set()):
            self._apart[away].discard(other)
            self._apart[away].add(one)
            self._apart[one].add(away)
        self._links[a].append((b, row))
        self._links[b].append((a, row))

    def parts(self, beside: Mapping[int, Pair]) -> Iterator[tuple[int, int, bool]]:
        """Yield each link of a tree: its row, the voxels on the smaller of its sides, and whether no other joins them.

        `beside` are the contacts, by their rows, that may join two sides. Each gets a random number at both of its
        ends, so the numbers on one side of a link cancel out but for those of contacts with the other side.
        """
        random = Random(0)
        numbers = {row: random.getrandbits(64) for row in beside}
        ends: dict[int, int] = defaultdict(int)
        for row, pair in beside.items():
            for end in pair:
                ends[end] ^= numbers[row]
        below = defaultdict(int, self._segments)
        for segment, parent, link in reversed(list(self._links_from_roots())):
            total, size = self.sizes[self.root(segment)], below[segment]
            if link is not None:
                yield link, min(size, total - size), ends[segment] == numbers.get(link, 0)
            below[parent] += size
            ends[parent] ^= ends[segment]

    def _links_from_roots(self) -> Iterator[tuple[int, int, int | None]]:
        """Yield each linked segment but the roots, after the one that links it: both, and the row of the link."""
        todo: list[tuple[int, int | None]] = [(one, None) for one in self._links if self.root(one) == one]
        while todo:
            segment, parent = todo.pop()
            for other, link in self._links[segment]:
                if other != parent:
                    yield other, segment, link
                    todo.append((other, segment))

    def side(self, a: int, b: int) -> list[int]:
        """Return the segments of the object of `a`, ascending; if a link joins it with `b`, those on its side of it."""
        found, todo = {a}, [a]
        while todo:
            segment = todo.pop()
            new = {other for other, _ in self._links.get(segment, []) if {segment, other} != {a, b}} - found
            found |= new
            todo += new
        return sorted(found)
