"""Horovod as `make setup` builds it, with envs/horovod.patch."""

import sys

import pytest
from training_jobs import launch, succeed

EXCHANGES = """
import time
import numpy as np, tensorflow as tf
from ffn.training.distributed import process_group

with process_group(2, stall_seconds=60) as group:
    average = tf.function(group.average)
    for step in range(60):
        if step % 2 == group.rank:
            time.sleep(0.05)
        np.testing.assert_array_equal(average(tf.fill([1000], step + float(group.rank))), step + 0.5)
    assert group.gather(group.rank) == [0, 1]
    group.barrier()
"""


@pytest.mark.parametrize("launcher", ["ffn launch", "mpirun"])
def test_exchanges_do_not_wait_for_the_ends_of_cycles(launcher):
    # 60 of them take longer than a job may; saying good-bye waits for one
    succeed([*launch(launcher, 2), sys.executable, "-c", EXCHANGES], HOROVOD_CYCLE_TIME="8000")
