"""The runs of a study: their options, their scores, and how certain they are."""

import argparse
import math

import numpy as np
import pytest

from ffn.errors import ConfigError, EvaluationError
from ffn.options import from_arguments
from ffn.studies.config import StudyConfig
from ffn.studies.runs import read_runs, runs_at_best

from .conftest import run_of


def test_a_row_without_a_score_is_no_divergence():
    run = run_of([0.5, 0.6, np.nan])
    assert run.at("f1", 300) == run.at("f1", 200) == 0.6 and run.at("f1", 100) == 0.5
    assert math.isnan(run.at("f1", 400)) and math.isnan(run_of([np.nan]).at("f1", 100))


def test_the_best_runs_are_those_of_the_grid_and_of_further_seeds():
    runs = [run_of([0.5], 2, rate, seed) for rate, seed in ((1e-3, 1), (2e-3, 1), (None, 3), (None, 2))]
    found = runs_at_best(runs, {2: 2e-3})[2]
    assert [(run.rate, run.seed) for run in found] == [(2e-3, 1), (None, 2), (None, 3)]
    with pytest.raises(EvaluationError, match="2 workers .*0.002"):
        runs_at_best(runs[:2], {2: 2e-3})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.csv", "", "metrics.csv"),
        ("workers-1-seed-9.csv", None, "workers-1-seed-9.csv"),
        ("workers-1-seed-8.csv", "step,f1,seconds\n5,0.5,1.0\n", "workers-1-seed-8.csv: .*accuracy"),
    ],
)
def test_a_file_that_holds_no_run_is_refused(name, text, message, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read_runs([f"{tmp_path}/{name}"])


@pytest.mark.parametrize(
    ("changes", "message"), [({"workers": (4, 2)}, "workers"), ({"max_nodes": 8}, r"max_nodes: 8 .*\(16\)")]
)
def test_a_contradiction_is_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_arguments(StudyConfig, argparse.Namespace(**changes))
