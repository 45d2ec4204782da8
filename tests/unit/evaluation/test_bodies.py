"""The costs of bodies and segments add up to the VOI."""

import csv
import io

import numpy as np
import pytest

from ffn.contingency import count_pairs
from ffn.evaluation.bodies import best_bodies, bodies_csv, worst_bodies
from ffn.evaluation.scores import score

IDS = np.arange(100, dtype=np.uint64)  # no body is in several components


def test_costs_add_up_to_the_voi_and_the_worst_comes_first(random_volumes):
    table = count_pairs(*random_volumes)
    worst = worst_bodies(table, IDS, count=100)
    scores = score(table, "foreground")
    for key, part in (("worst_splits", "voi_split"), ("worst_mergers", "voi_merge")):
        costs = [body["voi"] for body in worst[key]]
        assert costs == sorted(costs, reverse=True)
        assert sum(costs) == pytest.approx(scores[part])


def test_the_worst_bodies_name_their_parts():
    truth = np.repeat([1, 2, 3, 0], [60, 30, 10, 5])
    segmentation = np.repeat([11, 12, 22, 0], [40, 20, 40, 5])
    worst = worst_bodies(count_pairs(truth, segmentation), IDS)
    assert [body["id"] for body in worst["worst_splits"]] == [1]
    assert worst["worst_splits"][0]["parts"] == [{"id": 11, "voxels": 40}, {"id": 12, "voxels": 20}]
    assert [(m["id"], m["voxels"]) for m in worst["worst_mergers"]] == [(22, 40)]
    assert worst["worst_mergers"][0]["parts"] == [{"id": 2, "voxels": 30}, {"id": 3, "voxels": 10}]


def test_the_csv_has_a_row_for_each_body_and_segment(random_volumes):
    table = count_pairs(*random_volumes)
    rows = list(csv.DictReader(io.StringIO(bodies_csv(table, IDS))))
    scores = score(table, "foreground")
    for kind, part in (("truth", "voi_split"), ("segment", "voi_merge")):
        own = [row for row in rows if row["kind"] == kind]
        assert sum(float(row["voi"]) for row in own) == pytest.approx(scores[part], rel=1e-4)
        assert sum(float(row["share"]) for row in own) == pytest.approx(1, rel=1e-3)
        costs = [float(row["voi"]) for row in own]
        assert costs == sorted(costs, reverse=True)


def test_segments_of_several_bodies_have_none_that_holds_most_of_them():
    truth, segments = np.array([1, 1, 1, 1, 1, 2, 2, 3, 0]), np.array([4, 4, 4, 4, 4, 4, 5, 5, 6])
    assert best_bodies(count_pairs(truth, segments), 0.8) == {4: 1}
