"""The scores of a merge graph at several thresholds."""

import json

import numpy as np
import pytest

from ffn.assembly.evidence import Evidence
from ffn.assembly.merge_graph import MergeEdge, header
from ffn.contingency import ContingencyTable
from ffn.evaluation.config import SweepConfig
from ffn.evaluation.scores import CONVENTIONS
from ffn.evaluation.sweep import NO_MERGES, sweep, sweep_step
from ffn.geometry import Box

from ..volumes import write

TABLE = ContingencyTable(
    np.array([1, 1, 2, 3], np.uint64), np.array([10, 11, 20, 30], np.uint64), np.array([60, 40, 50, 50])
)


def edge(a, b, score):
    return MergeEdge(a, b, score, 0, 0, 0, 10, 10, 100.0, Evidence(*[1] * 8, *[0.5] * 9))


EDGES = [edge(10, 11, 0.8), edge(20, 30, 0.4), edge(7, 8, 0.9)]


def test_a_threshold_joins_the_edges_that_reach_it():
    steps = {threshold: sweep_step(TABLE, EDGES, threshold)["all"] for threshold in (NO_MERGES, 0.8, 0.4)}
    assert [step["num_merges"] for step in steps.values()] == [0, 2, 3]
    assert [step["largest_group"] for step in steps.values()] == [1, 2, 2]
    assert steps[NO_MERGES]["voi_split"] > 0 == steps[NO_MERGES]["voi_merge"]
    assert steps[0.8]["voi"] == pytest.approx(0) and steps[0.8]["are"] == pytest.approx(0)  # the split is corrected
    assert steps[0.4]["voi_split"] == pytest.approx(0) and steps[0.4]["voi_merge"] == pytest.approx(0.5)


def test_rows_are_written_by_falling_threshold(tmp_path):
    labels = np.repeat([1, 2, 3, 4], 6).reshape(2, 3, 4).astype(np.uint64)
    truth, base = write(tmp_path / "truth.h5", labels // 3 + 1), write(tmp_path / "base.h5", labels)
    (tmp_path / "graph.csv").write_text(header({}) + edge(1, 2, 0.5).row() + "\n")
    config = SweepConfig(thresholds=(0.2, 0.7))
    sweep(base, truth, [str(tmp_path / "graph.csv")], str(tmp_path / "sweep.json"), config, Box.parse("0:2,0:3,0:4"))
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["box"] == "0:2,0:3,0:4" and content["provenance"]["stage"] == "sweep"
    assert {name: [row["threshold"] for row in rows] for name, rows in content["sweep"].items()} == {
        name: [NO_MERGES, 0.7, 0.2] for name in CONVENTIONS
    }
    voi = [row["voi_split"] for row in content["sweep"]["all"]]
    assert voi[0] == voi[1] > voi[2]
