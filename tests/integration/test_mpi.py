"""Plain MPI: when one process fails, all end. The bits of Horovod are in `test_train_equality`."""

import sys

import pytest

from .training_jobs import launch, run

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
