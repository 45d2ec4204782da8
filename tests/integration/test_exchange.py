"""Horovod as `make setup` builds it, with envs/horovod-wakes-up.patch."""

import sys
from importlib.metadata import version

import pytest

from .training_jobs import launch, succeed

CYCLE_SECONDS = 2  # saying good-bye waits for one cycle
# Without the patch each step takes one cycle at least, and the tensors that cross take one more where a process that
# waits for another one does not look again soon. With it a step takes a tenth of a second.
EXCHANGES = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np, tensorflow as tf
from ffn.training.parallel.joining import process_group

def add(dtype, step):
    total = in_graph(tf.cast(tf.fill([1, 1000], step + group.rank), dtype))
    np.testing.assert_array_equal(total, 2 * step + 1)

with process_group(2, stall_seconds=60) as group, ThreadPoolExecutor() as pool:
    in_graph = tf.function(group.total)
    start = time.monotonic()
    for step in range(40):
        if step % 2 == group.rank:
            time.sleep(0.05)
        add(tf.float32, step)
        if group.rank == 0:
            add(tf.float32, step)
            add(tf.float64, step)
        else:
            crossing = pool.submit(add, tf.float64, step)
            time.sleep(0.05)
            add(tf.float32, step)
            crossing.result()
    num_cycles = (time.monotonic() - start) / float(sys.argv[1])
    assert num_cycles < 40, num_cycles
    assert group.gather(group.rank) == [0, 1]
    group.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ffn launch", "mpirun"])
def test_exchanges_do_not_wait_for_the_ends_of_cycles(request, launcher):
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    if not version("horovod").endswith("+ffn"):
        pytest.skip("Horovod is built without envs/horovod-wakes-up.patch (HOROVOD_PATCH=build)")
    command = [*launch(launcher, 2), sys.executable, "-c", EXCHANGES, str(CYCLE_SECONDS)]
    succeed(command, HOROVOD_CYCLE_TIME=str(1000 * CYCLE_SECONDS))
