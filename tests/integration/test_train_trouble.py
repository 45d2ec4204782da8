"""Jobs that are killed, stopped or frozen: they end soon, name the culprit, and go on to the very same weights."""

import os
import random
import shutil
from signal import SIGKILL, SIGSTOP, SIGTERM, SIGUSR1

import numpy as np
import pytest
from .training_jobs import (
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

from ffn.io import hdf5
from ffn.machine.runlock import take_lock
from ffn.model.store import load_model

pytestmark = pytest.mark.slow


def same_training(one, other, rank_file):
    """Assert that two jobs did the same, and are in the same state."""
    assert (one / "weights.h5").read_bytes() == (other / "weights.h5").read_bytes()
    assert load_model(one).config == load_model(other).config
    assert without_times(read_rows(one)) == without_times(read_rows(other))
    step = checkpoints(one)[-1]
    np.testing.assert_equal(shared_state(one, step), shared_state(other, step))
    states = [hdf5.read_arrays(folder / f"checkpoints/step-{step:08d}/{rank_file}")[0] for folder in (one, other)]
    for name in [name for name in states[0] if "seconds" in name]:
        for state in states:
            del state[name]
    np.testing.assert_equal(*states)


def test_two_processes_interrupted_in_every_way_end_with_the_same_weights(tubes, two, undisturbed, tmp_path):
    out, rng = tubes / "troubled", random.Random(1)
    arguments = command(tubes, out, [*two, "--checkpoint-steps", "7"], processes=2)
    with Job(arguments, tmp_path / "1") as job:  # one rank is killed
        job.run_on(out, rng)
        job.send(SIGKILL, rng.randrange(2))
        assert job.end() != 0
    with Job(arguments, tmp_path / "2") as job:  # all are killed, the launcher too
        job.run_on(out, rng)
        for rank in (0, 1):
            job.send(SIGKILL, rank)
        job.send(SIGKILL)
        assert job.end() != 0
    with Job(arguments, tmp_path / "3") as job:  # one rank is asked to stop, which all do, in the same step
        job.run_on(out, rng)
        job.send(SIGUSR1, 1)
        assert job.end() != 0
    (step,) = [step for step in checkpoints(out)[-1:] if f"stopped after step {step} by SIGUSR1, " in job.told()]
    assert "Traceback" not in job.told()
    assert not (out / "weights.h5").exists()
    assert f"resuming from {out}/checkpoints/step-{step:08d}" in succeed(arguments)
    same_training(out, undisturbed, "rank-00001.h5")


HARD = ["--virtual-workers", "2", "--batch-size", "2", "--compression", "1-bit", "--fov-policy", "max_pred"]


def test_compression_and_walks_in_flight_survive_a_kill_too(tubes, tmp_path):
    options = [*MODEL, "--num-workers", "1", "--max-steps", "100", "--log-steps", "25", *HARD]
    out = tubes / "hard-killed"
    arguments = command(tubes, out, [*options, "--checkpoint-steps", "7"])
    with Job(arguments, tmp_path / "1") as job:
        job.run_on(out, random.Random(2))
        job.send(SIGKILL)
        assert job.end() != 0
    newest = out / f"checkpoints/step-{checkpoints(out)[-1]:08d}"
    shutil.copytree(newest, broken := newest.with_name(f"step-{checkpoints(out)[-1] + 1:08d}"))
    (broken / "shared.h5").write_bytes((broken / "shared.h5").read_bytes()[:-9])
    undisturbed = command(tubes, tubes / "hard", [*options, "--checkpoint-steps", "100"])
    told = succeed_side_by_side({"undisturbed": undisturbed, "resumed": arguments})["resumed"]
    assert f"not resuming from {broken}, which is damaged: {broken}/shared.h5: checksum differs" in told
    assert f"resuming from {newest}" in told
    same_training(out, tubes / "hard", "rank-00000.h5")


@pytest.mark.parametrize(
    ("launcher", "processes", "frozen"), [("ffn launch", 2, 1), ("horovodrun", 2, 1), ("mpirun", 2, 0)]
)
def test_a_frozen_process_is_named_and_ends_the_job(tubes, tmp_path, request, launcher, processes, frozen):
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    out = tubes / f"frozen-{launcher.replace(' ', '-')}"
    endless = ["--num-workers", str(processes), "--max-steps", "1000000", "--stall-seconds", "5"]
    arguments = command(tubes, out, [*MODEL, *endless, "--checkpoint-steps", "5"], processes, launcher)
    with Job(arguments, tmp_path / "log") as job:
        job.run_on(out, random.Random(3))
        job.send(SIGSTOP, frozen)
        assert job.end() != 0  # `ffn launch` takes 30 s to get rid of a process that does not react, horovodrun 10 s
        assert f"rank {frozen} did not answer for 5 s (train.stall_seconds), so the job ends" in job.told()


@pytest.mark.parametrize("launcher", ["ffn launch", "mpirun"])
def test_a_launcher_that_is_stopped_leaves_a_checkpoint(tubes, tmp_path, request, launcher):
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    out = tubes / f"stopped-{launcher.replace(' ', '-')}"
    endless = ["--num-workers", "2", "--max-steps", "1000000", "--checkpoint-steps", "50"]
    grace = {"OMPI_MCA_odls_base_sigkill_timeout": "5"}  # mpirun's 1 s is little on a busy machine
    with Job(command(tubes, out, [*MODEL, *endless], 2, launcher), tmp_path / "log", **grace) as job:
        job.run_on(out, random.Random(4))
        job.send(SIGTERM)
        assert job.end() != 0
    assert f"stopped after step {checkpoints(out)[-1]} by SIGTERM" in job.told()


@pytest.mark.usefixtures("needs_horovod")
def test_another_training_in_the_same_folder_is_waited_for(tubes, tmp_path):
    """Such as the ranks of a launcher that was killed, which write a last checkpoint."""
    out = tubes / "orphaned"
    options = [*MODEL, "--num-workers", "2", "--max-steps", "1000000", "--checkpoint-steps", "5"]
    with take_lock(out) as other, Job(command(tubes, out, options, 2), tmp_path / "log") as job:
        job.wait_for(lambda: f"waiting for process {os.getpid()} on " in job.told())
        assert not (out / "metrics.csv").exists()
        other.close()
        job.wait_for(lambda: checkpoints(out))


def test_training_stops_before_its_walltime(tubes):
    out = tubes / "limited"
    options = [*MODEL, "--num-workers", "1", "--max-steps", "1000000", "--checkpoint-steps", "1000000"]
    done = run(command(tubes, out, [*options, "--walltime-minutes", "0.01", "--walltime-margin-seconds", "0"]))
    assert done.returncode == 2
    assert "stopped after step 1 by its walltime, of which 0 s were left, a checkpoint is written" in done.stderr
    assert checkpoints(out) == [1]
