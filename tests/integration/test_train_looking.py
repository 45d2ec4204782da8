"""Looking on while a network trains: validation; it does not change the weights."""

from pathlib import Path

import numpy as np
import pytest

from ffn.model.store import load_model

from .training_jobs import MODEL, command, read_rows, shared_state, succeed, validation, validation_rows, without_times

pytestmark = pytest.mark.slow

JOB = [*MODEL, "--batch-size", "2", "--max-steps", "20", "--log-steps", "10", "--checkpoint-steps", "10"]
ALONE = [*JOB, "--engine", "jax", "--num-workers", "1", "--ema-decay", "0.9"]
NOTHING = ["--validation-steps", "0"]


def looking(tubes: Path) -> list[str]:
    """Options with all there is to see."""
    return [*validation(tubes), "--validation-steps", "5", "--validation-examples", "5"]


def test_looking_on_changes_nothing(tubes):
    watched, unseen = tubes / "watched", tubes / "unseen"
    for out, options in {watched: looking(tubes), unseen: NOTHING}.items():
        succeed(command(tubes, out, [*ALONE, *options]))
    one, other = shared_state(watched, 20), shared_state(unseen, 20)
    assert one.keys() == other.keys() and any(name.startswith("averages/") for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert (watched / "weights.h5").read_bytes() == (unseen / "weights.h5").read_bytes()
    averages = load_model(watched).weights
    np.testing.assert_array_equal(averages["conv0_a/weights"], one["averages/conv0_a/weights"])
    assert without_times(read_rows(watched)) == without_times(read_rows(unseen))
    assert validation_rows(watched) and validation_rows(unseen) == []
