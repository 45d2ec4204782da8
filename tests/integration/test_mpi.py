"""Training over plain MPI: the bits of Horovod, and an end of all processes when one fails."""

import sys

import pytest

from .training_jobs import MODEL, command, launch, run, succeed_side_by_side

pytestmark = pytest.mark.usefixtures("needs_mpi4py")

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


@pytest.mark.parametrize(
    ("how", "told"), [("together", "told by rank 0: b.h5: no such file"), ("alone", "ZeroDivisionError: alone")]
)
def test_an_error_ends_all_processes(how, told):
    done = run([*launch("mpirun", 2), sys.executable, "-c", FAILING, how])
    assert done.returncode != 0 and done.stderr.count(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["bfloat16", "1-bit"])  # added up, and gathered
def test_training_has_the_weights_of_horovod(tubes, needs_horovod, compression):
    options = [*MODEL, "--num-workers", "2", "--max-steps", "12", "--log-steps", "4", "--compression", compression]
    jobs, out = {}, tubes / f"mpi-{compression}"
    for collective, launcher in (("horovod", "ffn launch"), ("mpi", "mpirun")):
        jobs[collective] = command(tubes, out / collective, [*options, "--collective", collective], 2, launcher)
    succeed_side_by_side(jobs)
    horovod, mpi = ((out / collective / "weights.h5").read_bytes() for collective in jobs)
    assert horovod == mpi
