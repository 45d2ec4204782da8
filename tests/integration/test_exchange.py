"""Horovod as `make setup` builds it, with envs/horovod-wakes-up.patch."""

import sys
from importlib.metadata import version

import pytest
from training_jobs import launch, succeed

# Without the patch each step takes one cycle at least, and the tensors that cross take one more where a process that
# waits for another one does not look again soon.
EXCHANGES = """
import time
from concurrent.futures import ThreadPoolExecutor
import numpy as np, tensorflow as tf
from ffn.training.distributed import process_group

def average(dtype, step):
    mean = in_graph(tf.cast(tf.fill([1000], step + group.rank), dtype))
    np.testing.assert_array_equal(mean, step + 0.5)

with process_group(2, stall_seconds=60) as group, ThreadPoolExecutor() as pool:
    in_graph = tf.function(group.average)
    for step in range(40):
        if step % 2 == group.rank:
            time.sleep(0.05)
        average(tf.float32, step)
        if group.rank == 0:
            average(tf.float32, step)
            average(tf.float64, step)
        else:
            crossing = pool.submit(average, tf.float64, step)
            time.sleep(0.05)
            average(tf.float32, step)
            crossing.result()
    assert group.gather(group.rank) == [0, 1]
    group.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ffn launch", "mpirun"])
def test_exchanges_do_not_wait_for_the_ends_of_cycles(request, launcher):
    request.getfixturevalue("needs_mpi" if launcher == "mpirun" else "needs_horovod")
    if not version("horovod").endswith("+ffn"):
        pytest.skip("Horovod is built without envs/horovod-wakes-up.patch (HOROVOD_PATCH=build)")
    # 40 of them take longer than a job may; saying good-bye waits for one
    succeed([*launch(launcher, 2), sys.executable, "-c", EXCHANGES], HOROVOD_CYCLE_TIME="8000")
