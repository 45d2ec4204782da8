"""Jobs that are killed, stopped or frozen: they end soon, name the culprit, and go on to the very same weights."""

import os
import shutil
import time
from signal import SIGKILL, SIGTERM, SIGUSR1

import numpy as np
import pytest

from ffn.io import hdf5
from ffn.machine.processes import take_lock
from ffn.model.store import load_model

from ..pauses import Pause
from .training_jobs import (
    MAX_PRED,
    MODEL,
    Job,
    checkpoints,
    command,
    read_rows,
    run,
    shared_state,
    succeed,
    succeed_side_by_side,
    without_times,
)

pytestmark = pytest.mark.slow

SAVED = "ffn.training.checkpoint:CheckpointFolder.save"  # after it, a checkpoint is whole


def same_training(one, other):
    """Assert that two jobs did the same, and are in the same state."""
    assert (one / "weights.h5").read_bytes() == (other / "weights.h5").read_bytes()
    assert load_model(one).config == load_model(other).config
    assert without_times(read_rows(one)) == without_times(read_rows(other))
    step = checkpoints(one)[-1]
    np.testing.assert_equal(shared_state(one, step), shared_state(other, step))
    states = [hdf5.read_arrays(folder / f"checkpoints/step-{step:08d}/parts.h5")[0] for folder in (one, other)]
    for name in [name for name in states[0] if "seconds" in name]:
        for state in states:
            del state[name]
    np.testing.assert_equal(*states)


def test_two_processes_interrupted_in_every_way_end_with_the_same_weights(tubes, two, undisturbed, tmp_path):
    out = tubes / "troubled"
    arguments = command(tubes, out, [*two, "--checkpoint-steps", "7"], processes=2)
    after_two = Pause("train", SAVED, calls=2)
    with Job(arguments, tmp_path / "1", **after_two.variables()) as job:  # one rank is killed
        job.wait_at(after_two, processes=2)
        job.send(SIGKILL, rank=1)
        after_two.resume()
        assert job.end() != 0
    assert checkpoints(out) == [7, 14]
    within = Pause("train", "ffn.training.checkpoint:digest")
    with Job(arguments, tmp_path / "2", **within.variables()) as job:  # all are killed, the launcher too
        job.wait_at(within, processes=1)
        for rank in (0, 1):
            job.send(SIGKILL, rank)
        job.send(SIGKILL)
        assert job.end() != 0
    assert checkpoints(out) == [7, 14]
    after_one = Pause("train", SAVED)
    with Job(arguments, tmp_path / "3", **after_one.variables()) as job:  # one is asked to stop, so all do
        job.wait_at(after_one, processes=2)
        job.send(SIGUSR1, rank=1)
        after_one.resume()
        assert job.end() != 0
    assert f"resuming from {out}/checkpoints/step-00000014" in job.told()
    assert "by SIGUSR1" in job.told()
    assert "Traceback" not in job.told()
    assert checkpoints(out)[-1] == 22 and not (out / "weights.h5").exists()
    assert f"resuming from {out}/checkpoints/step-00000022" in succeed(arguments)
    same_training(out, undisturbed)


HARD = ["--virtual-workers", "2", "--batch-size", "2", "--compression", "1-bit", *MAX_PRED]


def test_compression_and_walks_in_flight_survive_a_kill_too(tubes, tmp_path):
    options = [*MODEL, "--num-workers", "1", "--max-steps", "40", "--log-steps", "20", *HARD]
    out = tubes / "hard-killed"
    arguments = command(tubes, out, [*options, "--checkpoint-steps", "7"])
    pause = Pause("train", SAVED, calls=2)
    with Job(arguments, tmp_path / "1", **pause.variables()) as job:
        job.wait_at(pause, processes=1)
        job.send(SIGKILL)
        assert job.end() != 0
    newest = out / f"checkpoints/step-{checkpoints(out)[-1]:08d}"
    shutil.copytree(newest, broken := newest.with_name(f"step-{checkpoints(out)[-1] + 1:08d}"))
    (broken / "shared.h5").write_bytes((broken / "shared.h5").read_bytes()[:-9])
    undisturbed = command(tubes, tubes / "hard", [*options, "--checkpoint-steps", "100"])
    told = succeed_side_by_side({"undisturbed": undisturbed, "resumed": arguments})["resumed"]
    assert f"damaged: {broken}/shared.h5" in told
    assert f"resuming from {newest}" in told
    same_training(out, tubes / "hard")


@pytest.mark.parametrize(("launcher", "frozen"), [("ffn launch", 1), ("mpirun", 0)])
def test_a_frozen_process_is_named_and_ends_the_job(tubes, tmp_path, request, launcher, frozen):
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    out = tubes / f"frozen-{launcher.replace(' ', '-')}"
    endless = ["--num-workers", "2", "--max-steps", "1000000", "--stall-seconds", "5", "--checkpoint-steps", "5"]
    freeze = Pause("train", SAVED, rank=frozen)
    arguments = command(tubes, out, [*MODEL, *endless], 2, launcher)
    if launcher == "ffn launch":
        arguments[4:4] = ["--grace-seconds", "1"]  # until it kills the frozen one
    with Job(arguments, tmp_path / "log", **freeze.variables()) as job:
        job.wait_at(freeze, processes=1)
        assert job.end() != 0
        assert f"rank {frozen} did not answer" in job.told()


@pytest.mark.parametrize("launcher", ["ffn launch", "mpirun"])
def test_a_launcher_that_is_stopped_leaves_a_checkpoint(tubes, tmp_path, request, launcher):
    """Another training in the folder, such as orphaned ranks that write a last checkpoint, is waited for."""
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    out = tubes / f"stopped-{launcher.replace(' ', '-')}"
    endless = ["--num-workers", "2", "--max-steps", "1000000", "--checkpoint-steps", "10"]
    pause = Pause("train", SAVED)
    grace = {"OMPI_MCA_odls_base_sigkill_timeout": "10"}  # mpirun's 1 s is little on a busy machine; it waits it out
    arguments = command(tubes, out, [*MODEL, *endless], 2, launcher)
    with take_lock(out) as other, Job(arguments, tmp_path / "log", **grace, **pause.variables()) as job:
        job.wait_for(lambda: f"waiting for process {os.getpid()} on " in job.told())
        assert not (out / "metrics.csv").exists()
        other.close()
        job.wait_at(pause, processes=2)
        job.send(SIGTERM)
        pause.resume()
        assert job.end() != 0
    assert checkpoints(out)[-1] > 10
    assert f"stopped after step {checkpoints(out)[-1]} by SIGTERM" in job.told()


def test_training_stops_before_its_walltime(tubes):
    out = tubes / "limited"
    options = [*MODEL, "--num-workers", "1", "--max-steps", "1000000", "--checkpoint-steps", "1000000"]
    done = run(command(tubes, out, options), FFN_JOB_END_TIME=str(round(time.time() + 90)))
    assert done.returncode == 2 and "by its walltime" in done.stderr
    assert checkpoints(out) == [1]
