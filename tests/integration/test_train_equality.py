"""However many processes share the work, training is the same."""

import shutil
from signal import SIGKILL

import numpy as np
import pytest

from ..pauses import Pause
from .training_jobs import (
    MAX_PRED,
    MODEL,
    SAVED,
    SIX,
    Job,
    checkpoints,
    command,
    read_rows,
    require_same_training,
    shared_state,
    succeed,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_horovod")]


def test_gradient_and_weights_are_those_of_one_process(tubes, undisturbed):
    reference, every = tubes / "reference", ["--checkpoint-steps", "1", "--keep-checkpoints", "20"]
    succeed(command(tubes, reference, [*SIX, "--num-workers", "1", "--batch-size", "6", *every], records="few"))
    assert checkpoints(reference) == checkpoints(undisturbed) == list(range(1, 21))
    for step, tolerance in ((1, 5e-6), (10, 1e-4)):
        expected, found = shared_state(reference, step), shared_state(undisturbed, step)
        assert expected.keys() == found.keys()
        for key in expected:  # after one step, the optimizer holds a multiple of the gradient and of its square
            if step > 1 or key.startswith("optimizer"):
                scale = np.abs(expected[key]).max() + 1e-12
                np.testing.assert_allclose(found[key] / scale, expected[key] / scale, atol=tolerance, err_msg=key)
    rows = [read_rows(folder)[1] for folder in (reference, undisturbed)]
    assert rows[0]["epoch"] == rows[1]["epoch"] and float(rows[0]["epoch"]) > 1
    assert float(rows[0]["loss"]) == pytest.approx(float(rows[1]["loss"]), rel=1e-5)


HARD = [*MODEL, "--max-steps", "10", "--log-steps", "10", "--checkpoint-steps", "1", "--keep-checkpoints", "10"]
HARD += ["--compression", "1-bit", *MAX_PRED, "--ema-decay", "0.9", "--optimizer", "muon"]


@pytest.mark.usefixtures("needs_mpi4py")
def test_after_a_kill_other_processes_go_on_to_the_same_bits(tubes, tmp_path):
    """One process, then two over MPI, instead of two over Horovod; with walks in flight and errors of compression."""
    unchanged, changed = tubes / "unchanged", tubes / "changed"
    two = [*HARD, "--num-workers", "2"]
    succeed(command(tubes, unchanged, two, 2, records="few"))
    alone = command(tubes, changed, [*HARD, "--num-workers", "1", "--virtual-workers", "2"], records="few")
    pause = Pause("train", SAVED, calls=4)
    with Job(alone, tmp_path / "log", **pause.variables()) as job:
        job.wait_at(pause, processes=1)
        job.send(SIGKILL)
        assert job.end() != 0
    newest, broken = (changed / f"checkpoints/step-{step:08d}" for step in (4, 5))
    shutil.copytree(newest, broken)
    (broken / "shared.h5").write_bytes((broken / "shared.h5").read_bytes()[:-9])
    told = succeed(command(tubes, changed, [*two, "--collective", "mpi"], 2, "mpirun", records="few"))
    assert f"damaged: {broken}/shared.h5" in told and f"resuming from {newest}" in told
    assert checkpoints(changed) == checkpoints(unchanged) == list(range(1, 11))
    require_same_training(unchanged, changed)
