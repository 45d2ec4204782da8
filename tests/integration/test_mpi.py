"""Training over plain MPI: the bits of Horovod, and an end of all processes when one fails."""

import sys

import pytest

from .training_jobs import MODEL, command, launch, run, succeed_side_by_side

pytestmark = pytest.mark.usefixtures("needs_mpi4py")

TOTALS = """
import numpy as np, tensorflow as tf
from ffn.training.parallel.joining import process_group
from ffn.training.parallel.process_group import ProcessGroup

rows = np.random.default_rng(0).normal(size=(3, 1001)).astype(np.float32)
with process_group(3, stall_seconds=60, collective="mpi") as group:
    single = tf.constant(rows[group.rank : group.rank + 1])
    half = tf.function(lambda rows: (group.total(tf.cast(rows, tf.float16)), group.total(rows)))
    for expected, found in zip((rows.astype(np.float16), rows), half(single), strict=True):
        np.testing.assert_array_equal(found, ProcessGroup().total(tf.constant(expected)))
    assert group.gather("x" * group.rank) == ["", "x", "xx"] and group.broadcast(group.rank) == 0
    assert (group.local_rank, group.local_size) == (group.rank, 3)
    print("all right")
"""
FAILING = """
import sys
from ffn.errors import TrainError
from ffn.training.parallel.joining import process_group

def fail():
    raise TrainError("b.h5: no such file")

try:
    with process_group(2, stall_seconds=600, collective="mpi") as group:
        if sys.argv[1] == "alone" and group.rank == 1:
            raise ZeroDivisionError("alone")
        group.together(fail if group.rank == 1 else lambda: None)
except TrainError as error:
    sys.exit(f"told by rank {group.rank}: {error}")
"""


@pytest.mark.slow  # three processes load TensorFlow
def test_totals_in_graphs_have_the_bits_of_one_process():
    job = [*launch("mpirun", 3), sys.executable, "-c", TOTALS]
    done = run(job)
    assert (done.returncode, done.stdout.count("all right")) == (0, 3), done.stderr[-3000:]


@pytest.mark.parametrize(
    ("how", "told"), [("together", "told by rank 0: b.h5: no such file"), ("alone", "ZeroDivisionError: alone")]
)
def test_an_error_ends_all_processes(how, told):
    done = run([*launch("mpirun", 2), sys.executable, "-c", FAILING, how])
    assert done.returncode != 0 and done.stderr.count(told) == 1


@pytest.mark.slow
def test_training_has_the_weights_of_horovod(tubes, needs_horovod):
    options = [*MODEL, "--num-workers", "2", "--max-steps", "12", "--log-steps", "4"]
    options += ["--compression", "1-bit"]
    jobs = {}
    for collective, launcher in (("horovod", "ffn launch"), ("mpi", "mpirun")):
        jobs[collective] = command(tubes, tubes / collective, [*options, "--collective", collective], 2, launcher)
    succeed_side_by_side(jobs)
    horovod, mpi = ((tubes / collective / "weights.h5").read_bytes() for collective in jobs)
    assert horovod == mpi
