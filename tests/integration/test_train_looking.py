"""Looking on while a network trains: validation; it does not change the weights."""

import csv
from pathlib import Path

import numpy as np
import pytest

from ffn.model.store import load_model
from ffn.training.metrics import load_best

from .training_jobs import (
    MODEL,
    VALIDATION_BOX,
    command,
    read_rows,
    shared_state,
    succeed_side_by_side,
    validation,
    without_times,
)

pytestmark = pytest.mark.slow

JOB = [*MODEL, "--batch-size", "2", "--max-steps", "20", "--log-steps", "10", "--checkpoint-steps", "10"]
ALONE = [*JOB, "--engine", "jax", "--num-workers", "1", "--ema-decay", "0.9"]
NOTHING = ["--validation-steps", "0"]


def looking(tubes: Path) -> list[str]:
    """Options with all there is to see."""
    return [*validation(tubes), "--validation-steps", "5", "--validation-examples", "5"]


def validation_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "validation.csv").open(newline="") as file:
        return [{**row, "validation_seconds": ""} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def told(tubes):
    """What trainings of one process told: with all there is to see, with nothing, the best weights."""
    seen = [*ALONE, *looking(tubes)]
    options = {"watched": seen, "unseen": [*ALONE, *NOTHING], "best": [*seen, "--use-best", "--learning-rate", "0.02"]}
    return succeed_side_by_side({name: command(tubes, tubes / name, given) for name, given in options.items()})


@pytest.fixture(scope="module")
def watched(tubes, told):
    """Folder of a training with all there is to see."""
    return tubes / "watched"


def test_looking_on_changes_nothing(tubes, watched):
    one, other = shared_state(watched, 20), shared_state(tubes / "unseen", 20)
    assert one.keys() == other.keys() and any(name.startswith("averages/") for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert (watched / "weights.h5").read_bytes() == (tubes / "unseen/weights.h5").read_bytes()
    averages = load_model(watched).weights
    np.testing.assert_array_equal(averages["conv0_a/weights"], one["averages/conv0_a/weights"])
    assert without_times(read_rows(watched)) == without_times(read_rows(tubes / "unseen"))
    assert validation_rows(tubes / "unseen") == []


@pytest.mark.usefixtures("told")
def test_the_best_weights_become_the_model(tubes):
    out = tubes / "best"
    rows = validation_rows(out)
    best = max(rows, key=lambda row: (float(row["f1"]), int(row["step"])))
    step, weights = load_best(out)
    model = load_model(out)
    assert str(step) == best["step"] == model.provenance["inputs"]["best_step"]
    np.testing.assert_equal(model.weights, weights)
    assert model.provenance["inputs"]["validation"].endswith(VALIDATION_BOX)
