"""Jobs that are killed, stopped or frozen: they end soon, name the culprit, and go on to the very same weights."""

import os
import time
from signal import SIGKILL, SIGTERM

import pytest

from ffn.machine.processes import take_lock

from ..pauses import Pause
from .training_jobs import (
    MODEL,
    SAVED,
    SIX,
    TWO_FOR_SIX,
    Job,
    checkpoints,
    command,
    require_same_training,
    run,
    succeed,
)

pytestmark = pytest.mark.slow

OFTEN = ["--checkpoint-steps", "3", "--stall-seconds", "20"]  # a busy machine stands still for 5


def test_two_processes_killed_and_stopped_end_with_the_same_weights_in_one(tubes, undisturbed, tmp_path):
    """Another training in the folder, such as orphaned ranks that write a last checkpoint, is waited for."""
    out = tubes / "troubled"
    arguments = command(tubes, out, [*SIX, *TWO_FOR_SIX, *OFTEN[:2]], processes=2, records="few")
    within = Pause("train", "ffn.training.checkpoint:digest", calls=5)  # of two for each checkpoint
    with Job(arguments, tmp_path / "1", **within.variables()) as job:
        job.wait_at(within, processes=1)
        job.send(SIGKILL, rank=0)
        assert job.end() != 0
    assert checkpoints(out) == [3, 6] and len(list(out.glob("checkpoints/.step-00000009*"))) == 1
    after_one = Pause("train", SAVED)
    with (
        take_lock(out, 60) as other,
        Job(arguments, tmp_path / "2", **after_one.variables()) as job,
    ):  # the launcher stops
        job.wait_for(lambda: f"waiting for process {os.getpid()} on " in job.told())
        other.close()
        job.wait_at(after_one, processes=2)
        job.send(SIGTERM)
        after_one.resume_with(SIGTERM)
        assert job.end() != 0
    assert f"resuming from {out}/checkpoints/step-00000006" in job.told()
    assert "by SIGTERM" in job.told() and "Traceback" not in job.told()
    assert checkpoints(out)[-1] == 10 and not (out / "weights.h5").exists()
    alone = command(tubes, out, [*SIX, "--num-workers", "1", "--virtual-workers", "6"], records="few")
    assert f"resuming from {out}/checkpoints/step-00000010" in succeed(alone)
    require_same_training(out, undisturbed)


@pytest.mark.usefixtures("needs_mpi", "needs_mpi4py")
def test_a_frozen_process_is_named_and_the_job_ends_and_goes_on(tubes, undisturbed, tmp_path):
    """Horovod over MPI, then MPI alone."""
    out = tubes / "frozen"
    options, freeze = [*SIX, *TWO_FOR_SIX, *OFTEN], Pause("train", SAVED, rank=0)
    arguments = command(tubes, out, options, 2, "mpirun", "few")
    with Job(arguments, tmp_path / "log", **freeze.variables()) as job:
        job.wait_at(freeze, processes=1)
        assert job.end() != 0
        assert "rank 0 did" in job.told()
    assert checkpoints(out) == [3]
    assert f"resuming from {out}/checkpoints/step-00000003" in succeed([*arguments, "--collective", "mpi"])
    require_same_training(out, undisturbed)


def test_training_stops_before_its_walltime(tubes):
    out = tubes / "limited"
    options = [*MODEL, "--engine", "jax", "--num-workers", "1", "--max-steps", "1000000"]
    done = run(command(tubes, out, options), FFN_JOB_END_TIME=str(round(time.time() + 90)))
    assert done.returncode == 2 and "by its walltime" in done.stderr
    assert checkpoints(out) == [1]
