"""Training with JAX: by several processes and devices, and in turn with TensorFlow."""

import csv
import sys
from signal import SIGKILL

import numpy as np
import pytest

from ..pauses import Pause
from .training_jobs import MODEL, Job, checkpoints, command, shared_state, succeed, succeed_side_by_side, validation

pytest.importorskip("jax")

OPTIONS = [*MODEL, "--max-steps", "12", "--checkpoint-steps", "6", "--optimizer", "momentum", "--learning-rate", "0.1"]
TWO, ALONE = ["--num-workers", "2"], ["--num-workers", "1", "--virtual-workers", "2"]
HALF = ["--compression", "bfloat16"]


def job(tubes, out, engine, share, processes=1):
    return command(tubes, out, [*OPTIONS, *share, "--engine", engine], processes)


def assert_close(one, other):
    """Assert that two trainings came to the same weights, up to rounding; some are about 5."""
    states = [shared_state(folder, 12) for folder in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=1e-4, atol=1e-4, err_msg=name)


ALONE_HERE = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # as where they are not installed
from ffn.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_training_needs_no_tensorflow(tubes):
    """As on a machine with JAX for CUDA 13 alone."""
    out = tubes / "without-tensorflow"
    _, _, _, *words = job(tubes, out, "jax", ALONE)  # python -m ffn
    more = [*validation(tubes), "--validation-steps", "6", "--validation-examples", "5"]
    succeed([sys.executable, "-c", ALONE_HERE, *words, *more])
    with open(out / "validation.csv") as table:
        assert [row["step"] for row in csv.DictReader(table)][-1] == "12"
    assert (out / "weights.h5").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("needs_horovod")
def test_two_processes_have_the_bits_of_virtual_workers(tubes):
    alone, two = tubes / "alone", tubes / "two"
    jobs = {"alone": job(tubes, alone, "jax", [*ALONE, *HALF]), "two": job(tubes, two, "jax", [*TWO, *HALF], 2)}
    succeed_side_by_side(jobs)
    for step in (6, 12):
        np.testing.assert_equal(shared_state(two, step), shared_state(alone, step))
    assert (two / "weights.h5").read_bytes() == (alone / "weights.h5").read_bytes()


@pytest.mark.slow
def test_a_training_on_two_devices_goes_on_after_a_kill(tubes, tmp_path):
    """The devices share a batch, as GPUs of one process do; the weights are those of one device, up to rounding."""
    batch = ["--num-workers", "1", "--batch-size", "2"]
    jobs = {name: job(tubes, tubes / f"devices-{name}", "jax", batch) for name in ("one", "two", "killed")}
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    pause = Pause("train", "ffn.training.checkpoint:CheckpointFolder.save")
    with Job(jobs["killed"], tmp_path / "log", **devices, **pause.variables()) as killed:
        killed.wait_at(pause, processes=1)
        killed.send(SIGKILL)
        assert killed.end() != 0
    assert checkpoints(tubes / "devices-killed") == [6]
    succeed(jobs["one"])
    told = {name: succeed(jobs[name], **devices) for name in ("two", "killed")}
    assert all("FOVs on 2 × " in text for text in told.values())
    assert "resuming from" in told["killed"]
    one, two, resumed = (tubes / f"devices-{name}" for name in jobs)
    assert (resumed / "weights.h5").read_bytes() == (two / "weights.h5").read_bytes()
    np.testing.assert_equal(shared_state(resumed, 12), shared_state(two, 12))
    assert_close(one, two)
