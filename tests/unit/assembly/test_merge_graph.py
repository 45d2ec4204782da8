"""The file of an agglomeration graph, and the groups that it joins."""

import math

import numpy as np
import pytest

from ffn.assembly.given import Constraints
from ffn.assembly.merge import apply_groups, mapping_text, merge_groups, pair_scores
from ffn.assembly.merge_graph import COLUMNS, MergeGraphError, read_graph, read_graphs

from .conftest import edge, write_graph


def groups_of(edges, threshold, *constraints):
    return merge_groups(pair_scores(edges)[0], threshold, *constraints)


def test_a_graph_is_read_as_written_and_its_parts_are_joined(tmp_path):
    edges = [edge(1, 2, 0.75), edge(2**63, 2**63 + 5, 0.5)]
    assert read_graph(write_graph(tmp_path / "graph.csv", *edges)) == edges
    paths = [write_graph(tmp_path / f"{score}.csv", edge(1, 2, score)) for score in (0.25, 0.75)]
    assert list(read_graphs(paths)) == [edge(1, 2, 0.25), edge(1, 2, 0.75)] and not list(read_graphs([]))


REST = edge(4, 9, 0.9).row().removeprefix("4,9,0.900000")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'nothing'"),
        ("a,b\n1,2\n", "'a,b'"),
        (",".join(COLUMNS) + "\n1,2,0.5\n", r"line 2: '1,2,0.5'"),
        *(
            (",".join(COLUMNS) + f"\n{text}{REST}\n", "line 2: ")
            for text in ("0,9,0.9", "9,4,0.9", "4,9,-0.1", "4,9,1.5")
        ),
        (",".join(COLUMNS) + "\n" + edge(1, 2, 0.5).row().replace("500", "many") + "\n", "line 2: "),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "graph.csv"
    path.write_text(text)
    with pytest.raises(MergeGraphError, match=message):
        read_graph(path)


def test_a_group_has_its_smallest_id_whatever_the_order_of_edges(monkeypatch):
    monkeypatch.setattr("ffn.assembly.merge.LINKED_AT_ONCE", 1)
    edges = [edge(7, 9, 0.9), edge(3, 7, 0.6), edge(4, 5, 0.5), edge(3, 4, 0.49)]
    for order in (edges, edges[::-1]):
        base_ids, group_ids = groups_of(order, 0.5)
        assert base_ids.tolist() == [3, 4, 5, 7, 9] and group_ids.tolist() == [3, 4, 4, 3, 3]
    assert mapping_text(base_ids.tolist(), group_ids.tolist()).splitlines()[:3] == ["base_id,group_id", "3,3", "4,4"]
    labels = np.array([0, 1, 2, 3, 10**12, 2**64 - 1], np.uint64)
    base_ids, group_ids = np.array([2, 10**12], np.uint64), np.array([2, 2], np.uint64)
    assert apply_groups(labels, base_ids, group_ids).tolist() == [0, 1, 2, 3, 2, 2**64 - 1]


def test_no_answer_is_not_a_no():
    good, failed = [edge(1, 2, 0.95), edge(1, 3, 0.9)], edge(2, 3, float("nan"))
    assert groups_of([*good, failed], 0.7)[1].tolist() == [1, 1, 1]
    assert groups_of([*good, edge(2, 3, 0.0)], 0.7)[0].tolist() == [1, 2]
    assert pair_scores([*good, failed])[1] == pytest.approx(1 / 3)
    assert pair_scores([failed])[0].tolist() == [] and pair_scores([])[1] == 0


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([0.9], 0.9),
        ([0.9, float("nan")], 0.9),
        ([0.9, 0.0], 0.81),  # the chance that neither of two scores as high
        ([0.9] + [0.0] * 7, 0.9**8),
        ([0.9, 0.9] + [0.0] * 6, 0.9**8 + 8 * 0.1 * 0.9**7),
        ([0.8, 0.8], 0.8),
        ([0.9] * 8, 0.9),  # no more than one point
    ],
)
def test_the_best_of_many_points_is_worth_less_than_a_single_one(points, expected):
    (row,) = pair_scores([edge(1, 2, score) for score in points])[0].tolist()
    assert row == [1, 2, round(1e6 * expected)]


def by_chance(scores):
    """The score of a pair in steps of 10⁻⁶, with the binomial probabilities added one by one."""
    points, found = sorted(scores, reverse=True), []
    for k, score in enumerate(points, 1):
        n = len(points)
        found.append(sum(math.comb(n, j) * (1 - score) ** j * score ** (n - j) for j in range(k, n + 1)))
    return round(min(points[0], 1 - min(found)) * 1e6)


def by_definition(edges, threshold, joined, apart):
    """Join the two groups with the best mean again and again, and return the group of each id."""
    points, group = {}, {i: i for e in edges for i in (e.segment_a, e.segment_b)} | {i: i for p in joined for i in p}
    for e in edges:
        points.setdefault((e.segment_a, e.segment_b), []).append(e.score)
    best = {pair: by_chance(found) for pair, found in points.items()}

    def join(a, b):
        group.update({i: min(a, b) for i, g in group.items() if g in (a, b)})

    for a, b in joined:
        join(group[a], group[b])
    while True:
        between, forbidden = {}, {tuple(sorted((group.get(a), group.get(b)))) for a, b in apart if {a, b} <= set(group)}
        for (a, b), score in best.items():
            if group[a] != group[b]:
                between.setdefault(tuple(sorted((group[a], group[b]))), []).append(score)
        means = [(-sum(s) / len(s), *pair) for pair, s in between.items() if pair not in forbidden]
        if not means or -min(means)[0] < threshold * 1e6:
            return group
        join(*min(means)[1:])


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_are_joined_by_definition(seed):
    rng = np.random.default_rng(seed)
    ids = np.unique(rng.integers(1, 2**64 - 1, 40, np.uint64, endpoint=True))
    pairs = np.sort(rng.choice(ids, (90, 2)), axis=1)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]].tolist()
    edges = [edge(a, b, score / 20) for (a, b), score in zip(pairs, rng.integers(0, 21, len(pairs)), strict=True)]
    joined = pairs[:3]
    one = by_definition([], 1, joined, [])
    apart = [(a, b) for a, b in pairs[6:12] if one.get(a, a) != one.get(b, b)]
    constraints = Constraints(np.array(joined, np.uint64), np.array(apart, np.uint64).reshape(-1, 2))
    expected = by_definition(edges, 0.55, joined, apart)
    found = dict(zip(*map(np.ndarray.tolist, groups_of(edges, 0.55, constraints)), strict=True))
    assert {i: found.get(i, i) for i in expected} == expected and 3 < len(found) < 40
