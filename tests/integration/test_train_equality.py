"""However many processes share the work, training is the same."""

import json

import numpy as np
import pytest

from ffn.io import training_records

from .training_jobs import MODEL, checkpoints, command, make_records, read_rows, shared_state, succeed_side_by_side

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_horovod")]

# Four FOVs a step, however they are shared out; every step is kept.
TEN = [*MODEL, "--max-steps", "10", "--log-steps", "10", "--checkpoint-steps", "1", "--keep-checkpoints", "10"]
SHARES = {
    "one process": (1, 1, 4),
    "two processes": (2, 1, 2),
    "four processes": (4, 1, 1),
    "one process for four": (1, 4, 1),
}


@pytest.fixture(scope="module")
def trained(tubes):
    """Folders of the models, by how the work was shared; fewer shards than processes, of unequal length."""
    make_records(tubes / "few", training_records.read_shard(next((tubes / "records").glob("*.gz")))[0][:8], (5, 1, 2))
    folders = {name: tubes / name.replace(" ", "-") for name in SHARES}
    jobs = {}
    for name, (processes, virtual, batch) in SHARES.items():
        share = ["--num-workers", str(processes), "--virtual-workers", str(virtual), "--batch-size", str(batch)]
        jobs[name] = command(tubes, folders[name], [*TEN, *share], processes, records="few")
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


@pytest.mark.parametrize("name", ["two processes", "four processes"])
def test_all_processes_hold_bit_identical_weights(trained, name):
    for step in range(1, 11):
        manifest = json.loads((trained[name] / f"checkpoints/step-{step:08d}/manifest.json").read_text())
        digests = manifest["shared_sha256_by_rank"]
        assert len(digests) == SHARES[name][0] and len(set(digests)) == 1
