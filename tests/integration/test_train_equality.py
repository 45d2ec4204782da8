"""However many processes share the work, training is the same."""

import shutil

import numpy as np
import pytest

from ffn.io import training_records

from .training_jobs import (
    MAX_PRED,
    MODEL,
    checkpoints,
    command,
    make_records,
    read_rows,
    shared_state,
    succeed,
    succeed_side_by_side,
    without_times,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_horovod")]

# Four FOVs a step, however they are shared out; every step is kept.
TEN = [*MODEL, "--max-steps", "10", "--log-steps", "10", "--checkpoint-steps", "1", "--keep-checkpoints", "10"]
SHARES = {
    "one process": (1, 1, 4),
    "four processes": (4, 1, 1),
    "two processes for four": (2, 2, 1),
    "one process for four": (1, 4, 1),
}


def job(tubes, out, share, *options):
    """Command of a job: processes, virtual workers of each, FOVs of each worker."""
    processes, virtual, batch = share
    shared_out = ["--num-workers", str(processes), "--virtual-workers", str(virtual), "--batch-size", str(batch)]
    return command(tubes, out, [*TEN, *shared_out, *options], processes, records="few")


@pytest.fixture(scope="module")
def trained(tubes):
    """Folders of the models, by how the work was shared; fewer shards than processes, of unequal length."""
    make_records(tubes / "few", training_records.read_shard(next((tubes / "records").glob("*.gz")))[0][:8], (5, 1, 2))
    folders = {name: tubes / name.replace(" ", "-") for name in SHARES}
    jobs = {name: job(tubes, folders[name], share) for name, share in SHARES.items()}
    succeed_side_by_side(jobs)
    return folders


@pytest.mark.parametrize("name", list(SHARES)[1:])
def test_gradient_and_weights_are_those_of_one_process(trained, name):
    reference, other = trained["one process"], trained[name]
    assert checkpoints(reference) == checkpoints(other) == list(range(1, 11))
    for step, tolerance in ((1, 5e-6), (10, 1e-4)):
        expected, found = shared_state(reference, step), shared_state(other, step)
        assert expected.keys() == found.keys()
        for key in expected:  # after one step, the optimizer holds a multiple of the gradient and of its square
            if step > 1 or key.startswith("optimizer"):
                scale = np.abs(expected[key]).max() + 1e-12
                np.testing.assert_allclose(found[key] / scale, expected[key] / scale, atol=tolerance, err_msg=key)
    rows = [read_rows(folder)[-1] for folder in (reference, other)]
    assert rows[0]["epoch"] == rows[1]["epoch"] and float(rows[0]["epoch"]) > 1
    assert float(rows[0]["loss"]) == pytest.approx(float(rows[1]["loss"]), rel=1e-5)


@pytest.mark.parametrize("name", ["two processes for four", "one process for four"])
def test_four_workers_give_the_same_bits_on_any_number_of_processes(trained, name):
    assert_same(trained["four processes"], trained[name], range(1, 11))


OTHERWISE = ("--compression", "1-bit", *MAX_PRED, "--ema-decay", "0.9", "--optimizer", "muon")


@pytest.mark.usefixtures("trained")
def test_a_training_goes_on_with_another_number_of_processes(tubes):
    unchanged, changed = tubes / "unchanged", tubes / "changed"
    succeed(job(tubes, unchanged, (1, 2, 1), *OTHERWISE))
    shutil.copytree(unchanged, changed)
    for last_step, share in ((3, (2, 1, 1)), (7, (1, 2, 1))):  # as if a process had been killed after that step
        for step in range(last_step + 1, 11):
            shutil.rmtree(changed / f"checkpoints/step-{step:08d}")
        told = succeed(job(tubes, changed, share, *OTHERWISE))
        assert f"resuming from {changed}/checkpoints/step-{last_step:08d}" in told
    assert_same(unchanged, changed, range(1, 11))
    assert (unchanged / "weights.h5").read_bytes() == (changed / "weights.h5").read_bytes()


def assert_same(one, other, steps):
    """Assert that two jobs had the same weights after each step, and tell the same."""
    for step in steps:
        np.testing.assert_equal(shared_state(one, step), shared_state(other, step))
    rows = [without_times(read_rows(folder)) for folder in (one, other)]
    for row in (*rows[0], *rows[1]):
        del row["bytes_sent"]
    assert rows[0] == rows[1]
