"""Training with JAX: by several processes and devices, and where TensorFlow is not installed."""

import sys
from signal import SIGKILL

import numpy as np
import pytest

from ffn.model.store import load_model
from ffn.training.metrics import load_best

from ..pauses import Pause
from .training_jobs import (
    MODEL,
    SAVED,
    VALIDATION_BOX,
    Job,
    checkpoints,
    command,
    shared_state,
    succeed,
    validation,
    validation_rows,
)

pytest.importorskip("jax")

OPTIONS = [*MODEL, "--max-steps", "12", "--checkpoint-steps", "6", "--optimizer", "momentum", "--learning-rate", "0.1"]
TWO, ALONE = ["--num-workers", "2"], ["--num-workers", "1", "--virtual-workers", "2"]
HALF = ["--compression", "bfloat16"]


def job(tubes, out, engine, share, processes=1):
    return command(tubes, out, [*OPTIONS, *share, "--engine", engine], processes)


ALONE_HERE = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # as where they are not installed
from ffn.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_training_needs_no_tensorflow_and_its_best_weights_become_the_model(tubes):
    """As on a machine with JAX for CUDA 13 alone."""
    out = tubes / "without-tensorflow"
    _, _, _, *words = job(tubes, out, "jax", ALONE)  # python -m ffn
    more = [*validation(tubes), "--validation-steps", "3", "--validation-examples", "5", "--use-best"]
    succeed([sys.executable, "-c", ALONE_HERE, *words, *more])
    rows = validation_rows(out)
    assert rows[-1]["step"] == "12"
    best = max(rows, key=lambda row: (float(row["f1"]), int(row["step"])))
    step, weights = load_best(out)
    model = load_model(out)
    assert str(step) == best["step"] == model.provenance["inputs"]["best_step"]
    np.testing.assert_equal(model.weights, weights)
    assert model.provenance["inputs"]["validation"].endswith(VALIDATION_BOX)


@pytest.mark.slow
@pytest.mark.usefixtures("needs_horovod")
def test_two_processes_have_the_bits_of_virtual_workers(tubes):
    alone, two = tubes / "alone", tubes / "two"
    succeed(job(tubes, alone, "jax", [*ALONE, *HALF]))
    succeed(job(tubes, two, "jax", [*TWO, *HALF], 2))
    for step in (6, 12):
        np.testing.assert_equal(shared_state(two, step), shared_state(alone, step))
    assert (two / "weights.h5").read_bytes() == (alone / "weights.h5").read_bytes()


@pytest.mark.slow
def test_a_training_on_two_devices_goes_on_after_a_kill(tubes, tmp_path):
    """The devices share a batch, as GPUs of one process do."""
    batch = ["--num-workers", "1", "--batch-size", "2"]
    jobs = {name: job(tubes, tubes / f"devices-{name}", "jax", batch) for name in ("two", "killed")}
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    pause = Pause("train", SAVED)
    with Job(jobs["killed"], tmp_path / "log", **devices, **pause.variables()) as killed:
        killed.wait_at(pause, processes=1)
        killed.send(SIGKILL)
        assert killed.end() != 0
    assert checkpoints(tubes / "devices-killed") == [6]
    told = {name: succeed(jobs[name], **devices) for name in jobs}
    assert all("FOVs on 2 × " in text for text in told.values())
    assert "resuming from" in told["killed"]
    two, resumed = (tubes / f"devices-{name}" for name in jobs)
    assert (resumed / "weights.h5").read_bytes() == (two / "weights.h5").read_bytes()
    np.testing.assert_equal(shared_state(resumed, 12), shared_state(two, 12))
