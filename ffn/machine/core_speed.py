"""How fast one core multiplies: the best of many small products in float32, which other processes hardly disturb.

`core_flops` runs this file as a program, because NumPy reads the number of threads when it is imported.
"""

import os
import subprocess
import sys
import time

import numpy as np

SIDE = 256  # a product takes less than a millisecond, so some are never interrupted
SECONDS = 0.3
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "MKL_NUM_THREADS")  # of NumPy's libraries


def core_flops() -> float:
    """Operations per second of one core in float32."""
    command = [sys.executable, "-P", __file__]
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def _measure() -> float:
    factor = np.full((SIDE, SIDE), 0.5, np.float32)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        factor @ factor
        best = min(best, time.perf_counter() - start)
    return 2 * SIDE**3 / best


if __name__ == "__main__":
    print(_measure())
