"""The studies as targets of the workflow."""

import json

import pytest

from ..small_run import SMALL_RUN, Workflow, shown
from .test_pipeline import planned

STUDY = {
    "workers": [1, 2],
    "learning_rates": [0.001, 0.004, 0.016],
    "steps": 30,
    "seeds": 2,
    "depth": 1,
    "features": 4,
    "measured_steps": 20,
}
BOTH = {"study_train", "study_train_best", "study_measure", "study_learning_rate", "study_scaling"}


def test_a_study_is_a_target_and_no_part_of_the_pipeline(tmp_path):
    workflow = Workflow(tmp_path, {**SMALL_RUN, "study": STUDY})
    rules = planned(workflow.plan("study_efficiency"))
    assert {rule for rule in rules if rule.startswith("study_")} == {"study_efficiency", *BOTH}
    assert "train" not in rules
    assert not {rule for rule in planned(workflow.plan()) if rule.startswith("study_")}


@pytest.mark.slow
def test_all_studies_run(tmp_path):
    train = {**SMALL_RUN["train"], "engine": "jax"}  # begins in a fifth of the time
    workflow = Workflow(tmp_path, {**SMALL_RUN, "train": train, "study": STUDY})
    shown(workflow.fork("study_curves", "study_efficiency"))
    studies = workflow.results / "studies"
    rates = json.loads((studies / "learning_rate.json").read_text())["best_rates"]
    assert set(rates) == {"1", "2"}
    assert (studies / f"runs/workers-2-rate-{rates['2']!r}-seed-4/model.yaml").is_file()  # a further seed of the best
    scaling = json.loads((studies / "scaling.json").read_text())
    assert [row["processes"] for row in scaling["measured"]] == [1, 2]
    curves = json.loads((studies / "curves.json").read_text())["curves"]
    assert curves["2"]["step"] == list(range(1, 31))
    assert "Nothing to be" in workflow.plan("study_curves", "study_efficiency")
