"""Updates of the gradients that come first: real workers that are stopped, killed, and come back."""

import contextlib
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import numpy as np
import pytest

from ffn.model.store import load_model

from .training_jobs import MODEL, Job, checkpoints, command, read_rows, succeed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("needs_mpi4py")]

EACH = [*MODEL, "--log-steps", "5", "--engine", "jax"]


def test_all_gradients_from_the_newest_weights_make_synchronous_updates(tubes):
    share = {
        "together": (["--num-workers", "1", "--virtual-workers", "2"], 1),
        "served": (["--num-workers", "2", "--gradients-per-update", "2"], 3),  # one more, which updates
    }
    for name, (options, processes) in share.items():  # what the first compiles, the workers of the second find
        succeed(command(tubes, tubes / name, [*EACH, *options, "--max-steps", "12"], processes, "mpirun"))
    models = {name: load_model(tubes / name) for name in share}
    for name, weights in models["together"].weights.items():
        np.testing.assert_allclose(models["served"].weights[name], weights, rtol=0, atol=1e-6)
    columns = ("step", "loss", "accuracy", "f1", "epoch")
    rows = [[[float(row[name]) for name in columns] for row in read_rows(tubes / name)] for name in share]
    np.testing.assert_allclose(*rows, rtol=1e-4)
    assert ["reproducible" in models[name].provenance["inputs"] for name in share] == [False, True]


def test_workers_are_stopped_and_killed_and_come_back_while_training_goes_on(tubes, tmp_path):
    out = tubes / "elastic"
    options = [*EACH, "--num-workers", "2", "--gradients-per-update", "1", "--checkpoint-steps", "5"]
    alone = command(tubes, out, [*options, "--max-steps", "1000000"])
    arguments = command(tubes, out, [*options, "--max-steps", "1000000"], 3, "mpirun")
    arguments.insert(1, "--enable-recovery")  # else Open MPI ends all ranks with the one that is killed

    def goes_on():
        step = max(checkpoints(out), default=0)
        job.wait_for(lambda: checkpoints(out)[-1:] > [step + 5])

    grace = {"OMPI_MCA_odls_base_sigkill_timeout": "10"}  # mpirun's 1 s is little on a busy machine; it waits it out
    with Job(arguments, tmp_path / "log", FFN_LOG="INFO", **grace) as job:
        goes_on()
        job.send(SIGSTOP, rank=1)
        goes_on()
        job.send(SIGCONT, rank=1)
        killed = job.ranks()[2].pid
        job.send(SIGKILL, rank=2)
        job.wait_for(lambda: f"process {killed} on" in job.told() and "is gone" in job.told())
        goes_on()
        with Job(alone, tmp_path / "returned") as returned:
            job.wait_for(lambda: f"process {returned.pid} on" in job.told())
            goes_on()
            job.send(SIGTERM)  # to mpirun
            job.end()
            assert returned.end() == 0
    done = checkpoints(out)[-1]
    assert "by SIGTERM" in job.told() and not (out / "weights.h5").exists()
    finite = command(tubes, out, [*options, "--max-steps", str(done + 5)])
    with contextlib.ExitStack() as stack:  # no launcher: whoever comes first serves, and one of two workers does
        jobs = [stack.enter_context(Job(finite, tmp_path / f"{number}", FFN_LOG="INFO")) for number in range(2)]
        assert [job.end() for job in jobs] == [0, 0]
        assert any(f"resuming from {out}/checkpoints/step-{done:08d}" in job.told() for job in jobs)
    losses = [float(row["loss"]) for row in read_rows(out)]
    assert losses[-1] < 0.5 * losses[0]
